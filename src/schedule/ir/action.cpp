#include "pipewright/schedule/action.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

constexpr std::string_view kOverlap = "OVERLAP_F_B";

constexpr std::array<std::string_view, 12> kKindText = {
    "", "F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD"};

std::string quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

std::string_view strip(std::string_view text) {
  constexpr std::string_view kWhite = " \t\r\n\v\f";
  const auto first = text.find_first_not_of(kWhite);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kWhite) - first + 1);
}

/// Takes the decimal number at the front of `text`; `what` and `limit` are for the error.
std::uint32_t take_number(std::string_view& text, std::string_view action, const char* what,
                          std::int64_t limit) {
  std::uint32_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status == std::errc::invalid_argument) {
    throw ParseError(quoted(action) + " has no " + what +
                     ": an action is <stage><KIND><microbatch>, such as 2F0");
  }
  if (status == std::errc::result_out_of_range || value >= limit) {
    throw ParseError(quoted(action) + ": the " + what + " is beyond the limit of " +
                     std::to_string(limit - 1));
  }
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

Kind parse_kind(std::string_view text, std::string_view action) {
  for (std::size_t i = 1; i < kKindText.size(); ++i) {
    if (text == kKindText[i]) return static_cast<Kind>(i);
  }
  throw ParseError(quoted(action) + " has an unknown kind " + quoted(text) +
                   ": it is one of F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD, "
                   "REDUCE_GRAD or (part;part)OVERLAP_F_B");
}

/// `rest` is what follows the microbatch: a colon and the peer stage.
Action parse_skip(std::string_view rest, std::string_view action, std::uint32_t stage, Kind kind,
                  std::uint32_t microbatch) {
  rest.remove_prefix(1);
  const auto peer = static_cast<Stage>(take_number(rest, action, "peer stage", kMaxStages));
  if (!rest.empty()) {
    throw ParseError(quoted(action) + " goes on after the peer stage with " + quoted(rest));
  }
  const auto own = static_cast<Stage>(stage);
  const bool is_later = kind == Kind::SendF || kind == Kind::RecvB;
  const Stage distance = is_later ? peer - own : own - peer;
  if (distance < 1) {
    throw ParseError(quoted(action) + ": the peer stage of a " + std::string(to_text(kind)) + " comes " +
                     (is_later ? "after" : "before") + " its own");
  }
  if (distance == 1) throw ParseError(quoted(action) + ": a neighbour stage is not written out");
  if (distance > kMaxSkipDistance) {
    throw ParseError(quoted(action) + ": the stages are more than " + std::to_string(kMaxSkipDistance) +
                     " apart");
  }
  return make_message(own, kind, static_cast<Microbatch>(microbatch), peer);
}

Action parse_action(std::string_view action) {
  std::string_view rest = action;
  const auto stage = take_number(rest, action, "stage", kMaxStages);
  const auto kind_size = rest.find_first_of("0123456789");
  const Kind kind = parse_kind(rest.substr(0, kind_size), action);
  rest.remove_prefix(std::min(kind_size, rest.size()));
  std::uint32_t microbatch = 0;
  if (has_microbatch(kind)) {
    microbatch = take_number(rest, action, "microbatch", kMaxMicrobatches);
    if (is_message(kind) && rest.starts_with(':')) return parse_skip(rest, action, stage, kind, microbatch);
    if (!rest.empty()) {
      throw ParseError(quoted(action) + " goes on after the microbatch with " + quoted(rest));
    }
  } else if (!rest.empty()) {
    throw ParseError(quoted(action) + ": " + std::string(to_text(kind)) + " takes no microbatch");
  }
  return make_action(static_cast<Stage>(stage), kind, static_cast<Microbatch>(microbatch));
}

void parse_overlap(std::string_view cell, std::vector<Action>& out) {
  const auto close = cell.find(')');
  if (close == std::string_view::npos || strip(cell.substr(close + 1)) != kOverlap) {
    throw ParseError(quoted(cell) + " is not of the form (0F1;1B0)OVERLAP_F_B");
  }
  const std::string_view parts = cell.substr(1, close - 1);
  const auto semicolon = parts.find(';');
  if (semicolon == std::string_view::npos || parts.find(';', semicolon + 1) != parts.npos) {
    throw ParseError(quoted(cell) + ": an OVERLAP_F_B has two parts");
  }
  const Action first = parse_action(strip(parts.substr(0, semicolon)));
  const Action second = parse_action(strip(parts.substr(semicolon + 1)));
  const bool forward_first = first.kind == Kind::F && gives_input_grad(second.kind);
  const bool backward_first = gives_input_grad(first.kind) && second.kind == Kind::F;
  if (!forward_first && !backward_first) {
    throw ParseError(quoted(cell) + ": the parts of an OVERLAP_F_B are one F and one B or I");
  }
  out.push_back(fused(first));
  out.push_back(second);
}

void append_action_text(Action action, std::string& out) {
  if (action.kind == Kind::Bubble) return;
  std::array<char, 12> digits{};
  const auto append_number = [&](std::uint32_t value) {
    out.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr);
  };
  append_number(action.stage);
  out += to_text(action.kind);
  if (has_microbatch(action.kind)) append_number(action.microbatch);
  if (action.skipped() == 0) return;
  // Whatever it is: a schedule may hold a message to a stage before the first.
  out += ':';
  out += std::to_string(peer_stage(action));
}

}  // namespace

std::string_view to_text(Kind kind) { return kKindText[static_cast<std::size_t>(kind)]; }

std::size_t step_of(std::span<const Action> actions, std::size_t position) {
  std::size_t step = 0;
  for (std::size_t i = 0; i < position; ++i) step += actions[i].fused_with_next() ? 0 : 1;
  return step;
}

std::string to_text(Action action) {
  std::string text;
  append_action_text(action, text);
  return text;
}

void append_cell_text(std::span<const Action> cell, std::string& out) {
  if (cell.size() == 1) return append_action_text(cell[0], out);
  out += '(';
  for (std::size_t i = 0; i < cell.size(); ++i) {
    if (i > 0) out += ';';
    append_action_text(cell[i], out);
  }
  out += ')';
  out += kOverlap;
}

std::string cell_text(std::span<const Action> cell) {
  std::string text;
  append_cell_text(cell, text);
  return text;
}

void parse_cell(std::string_view text, std::vector<Action>& out) {
  text = strip(text);
  if (text.empty()) {
    out.emplace_back();
  } else if (text.front() == '(') {
    parse_overlap(text, out);
  } else {
    out.push_back(parse_action(text));
  }
}

}  // namespace pipewright
