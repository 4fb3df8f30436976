#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/base/ids.h"

namespace pipewright {

enum class Kind : std::uint8_t {
  Bubble,      ///< Nothing: an empty cell.
  F,           ///< Forward.
  B,           ///< Full backward: I and W in one.
  I,           ///< Backward for the gradient of the stage's input.
  W,           ///< Backward for the gradient of the stage's weights.
  SendF,       ///< Send the activation to the next stage, or over a skip to a later one.
  RecvF,       ///< Receive the activation from the previous stage, or over a skip from an earlier one.
  SendB,       ///< Send the gradient to the stage that the activation came from.
  RecvB,       ///< Receive the gradient from the stage that the activation went to.
  Unshard,     ///< Gather the stage's sharded parameters.
  Reshard,     ///< Free the gathered parameters.
  ReduceGrad,  ///< Reduce the stage's gradients over data-parallel replicas.
};

/// F, B, I or W.
constexpr bool is_compute(Kind kind) { return kind >= Kind::F && kind <= Kind::W; }
/// B or I: what produces the gradient of the stage's input.
constexpr bool gives_input_grad(Kind kind) { return kind == Kind::B || kind == Kind::I; }
/// B or W: what completes a microbatch's weight gradient.
constexpr bool gives_weight_grad(Kind kind) { return kind == Kind::B || kind == Kind::W; }
constexpr bool is_send(Kind kind) { return kind == Kind::SendF || kind == Kind::SendB; }
constexpr bool is_receive(Kind kind) { return kind == Kind::RecvF || kind == Kind::RecvB; }
/// SEND_F, RECV_F, SEND_B or RECV_B.
constexpr bool is_message(Kind kind) { return kind >= Kind::SendF && kind <= Kind::RecvB; }
/// Every kind but Unshard, Reshard, ReduceGrad and Bubble belongs to one microbatch.
constexpr bool has_microbatch(Kind kind) { return kind >= Kind::F && kind <= Kind::RecvB; }

/// The kind as the text format spells it: "F", "SEND_B", "REDUCE_GRAD"; empty for a bubble.
std::string_view to_text(Kind kind);

/// One step of one rank: a value of eight bytes.
///
/// An OVERLAP_F_B is not an action of its own but its parts in a row, each but
/// the last marked `fused_with_next`. Whoever cares only about what is computed
/// can ignore the mark; whoever cares about cells asks `cell_size`.
struct Action {
  Kind kind = Kind::Bubble;
  /// Of a message: how many stages it skips. kFused: one of the parts of an OVERLAP_F_B but the last.
  std::uint8_t link = 0;
  std::uint16_t stage = 0;
  std::uint32_t microbatch = 0;

  static constexpr std::uint8_t kFused = 255;
  constexpr bool fused_with_next() const { return link == kFused; }
  /// 0 between neighbours, and for what is no message.
  constexpr std::uint8_t skipped() const { return fused_with_next() ? 0 : link; }

  friend constexpr bool operator==(Action a, Action b) {
    return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
  }
};
static_assert(sizeof(Action) == sizeof(std::uint64_t), "tens of millions of actions must stay cheap");

/// REQUIRES: 0 ≤ stage < kMaxStages and 0 ≤ microbatch < kMaxMicrobatches.
constexpr Action make_action(Stage stage, Kind kind, Microbatch microbatch = 0) {
  return {.kind = kind,
          .stage = static_cast<std::uint16_t>(stage),
          .microbatch = static_cast<std::uint32_t>(microbatch)};
}

/// The stage that a message goes to or comes from.
constexpr Stage peer_stage(Action message) {
  const Stage distance = message.link + 1;
  const bool is_later = message.kind == Kind::SendF || message.kind == Kind::RecvB;
  return is_later ? message.stage + distance : message.stage - distance;
}

/// REQUIRES: as for `make_action`; `kind` is a message, and `peer` lies in its direction, at most
/// kMaxSkipDistance away.
constexpr Action make_message(Stage stage, Kind kind, Microbatch microbatch, Stage peer) {
  const Stage distance = kind == Kind::SendF || kind == Kind::RecvB ? peer - stage : stage - peer;
  return {.kind = kind,
          .link = static_cast<std::uint8_t>(distance - 1),
          .stage = static_cast<std::uint16_t>(stage),
          .microbatch = static_cast<std::uint32_t>(microbatch)};
}

/// The same action, as the first part of an OVERLAP_F_B.
constexpr Action fused(Action action) {
  action.link = Action::kFused;
  return action;
}

/// Number of actions in the cell that starts at `at`: 1, or the parts of an OVERLAP_F_B.
inline std::size_t cell_size(std::span<const Action> actions, std::size_t at) {
  std::size_t end = at;
  while (end + 1 < actions.size() && actions[end].fused_with_next()) ++end;
  return end + 1 - at;
}

/// The cell that holds the action at `position`, counted from 0: the column of a CSV row.
std::size_t step_of(std::span<const Action> actions, std::size_t position);

/// One action as text, its fuse mark left aside: `2F0`, `1UNSHARD`, `0SEND_F2`; a message over a skip
/// names its peer stage, `0SEND_F2:3`; empty for a bubble.
std::string to_text(Action action);

/// A cell as text: `2F0`, `(0F3;7B1)OVERLAP_F_B`, or empty for a bubble.
std::string cell_text(std::span<const Action> cell);

/// Appends `cell_text(cell)` to `out`.
void append_cell_text(std::span<const Action> cell, std::string& out);

/// Reads a cell and appends its actions to `out`; the empty text is a bubble.
/// White space around an action is ignored. Throws ParseError.
void parse_cell(std::string_view text, std::vector<Action>& out);

}  // namespace pipewright
