#include "runtime/world/failure_watch.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>
#include <vector>

#include "pipewright/flight/diagnose.h"
#include "runtime/transport/channel.h"
#include "runtime/world/remote_failure.h"

namespace pipewright {
namespace {

using nlohmann::json;
using SteadyClock = std::chrono::steady_clock;

/// Who does not answer in this time is taken to be stopped, or cut off.
constexpr std::chrono::milliseconds kAnswer{1500};
/// After that, with some more for the way, whoever was to judge is not waited for any more.
constexpr std::chrono::milliseconds kVerdict{1800};
constexpr std::chrono::seconds kSettle{5};
constexpr std::chrono::milliseconds kGoodbye{10'000};
constexpr std::chrono::milliseconds kLastWord{500};

constexpr const char* kSilent = "does not answer: it is stopped, or cannot be reached";

std::string dump(const json& document) {
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

json to_json_value(const std::optional<Notice>& notice) {
  if (!notice) return nullptr;
  return {{"kind", static_cast<int>(notice->kind)}, {"word", notice->word}};
}

std::optional<Notice> notice_in(const json& value) {
  if (!value.is_object()) return std::nullopt;
  return Notice{static_cast<Notice::Kind>(std::clamp(value.value("kind", 0), 0, 2)), value.value("word", "")};
}

/// A rank that waits for one of a process that is not there, as an error of its own, or else a process.
std::optional<std::string> waiting_word(const std::map<int, ProcessRecord>& records,
                                        const std::map<int, std::string>& absent) {
  for (const auto& [process, record] : records) {
    for (const RankRecord& rank : record.ranks) {
      for (const RecordedAction& each : rank.actions) {
        if (!each.waits() || each.need != Need::Message) continue;
        const Stage from = each.source();
        const Rank peer = record.placement.at(static_cast<std::size_t>(from));
        const int peers_process =
            record.process_of.at(static_cast<std::size_t>(rank.replica)).at(static_cast<std::size_t>(peer));
        if (!absent.contains(peers_process)) continue;
        const ChannelId channel{from, each.action.stage, peer, rank.rank, rank.replica};
        return to_word(
            {rank.replica, rank.rank}, each.action,
            place_text({rank.replica, rank.rank}, each.action, static_cast<int>(record.process_of.size())) +
                "no " + to_text(channel) + " for microbatch " + std::to_string(each.action.microbatch));
      }
    }
  }
  for (const auto& [process, record] : records) {
    const auto is_absent = [&](int other) { return absent.contains(other); };
    if (!record.wait || std::ranges::none_of(record.wait->among, is_absent)) continue;
    return to_word({-1, -1}, Action{},
                   "process " + std::to_string(process) + " waits for the " + record.wait->what + " in vain");
  }
  return std::nullopt;
}

}  // namespace

FailureWatch::FailureWatch(std::unique_ptr<Peers> peers, Describe describe, Tell tell)
    : peers_(std::move(peers)),
      describe_(std::move(describe)),
      tell_(std::move(tell)),
      thread_([this] { serve(); }) {}

FailureWatch::~FailureWatch() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  peers_->wake();
  thread_.join();
}

std::string FailureWatch::settle(const Notice& notice) {
  std::unique_lock lock(mutex_);
  if (!own_ || notice.kind < own_->kind) own_ = notice;
  peers_->wake();
  changed_.wait_for(lock, kSettle, [this] { return told_; });
  return verdict_.value_or(notice.word);
}

void FailureWatch::serve() {
  while (!may_end()) {
    const Peers::Event event = peers_->next(end_ && deadline_ ? std::min(end_, deadline_)
                                            : end_            ? end_
                                                              : deadline_);
    switch (event.kind) {
      case Peers::Event::Kind::Word: on_word(event.from, event.text); break;
      case Peers::Event::Kind::Gone: on_gone(event.from, event.text); break;
      case Peers::Event::Kind::Late:
        if (deadline_ && SteadyClock::now() >= *deadline_) on_late();
        break;
      case Peers::Event::Kind::Woken: on_woken(); break;
    }
  }
}

void FailureWatch::on_woken() {
  bool noticed = false;
  bool leave = false;
  {
    const std::lock_guard lock(mutex_);
    noticed = own_ && !verdict_;
    leave = leaving_;
  }
  if (noticed && !judge_) ask();
  if (!leave || end_) return;
  end_ = SteadyClock::now() + (over() ? kLastWord : kGoodbye);
  peers_->send_all(dump({{"goodbye", true}}));
}

bool FailureWatch::may_end() {
  if (!end_) return false;
  if (SteadyClock::now() >= *end_) return true;
  const bool alone = absent_.size() + 1 == static_cast<std::size_t>(peers_->size());
  return peers_->all_sent() && (peers_->rank() > 0 || alone || over());
}

bool FailureWatch::over() {
  const std::lock_guard lock(mutex_);
  return verdict_.has_value();
}

void FailureWatch::ask() {
  judge_ = peers_->rank();
  deadline_ = SteadyClock::now() + kAnswer;
  peers_->send_all(dump({{"ask", true}}));
  judge_if_complete();
}

void FailureWatch::on_word(int from, const std::string& text) {
  const json word = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!word.is_object()) return;
  std::optional<Notice> own;
  std::optional<std::string> verdict;
  {
    const std::lock_guard lock(mutex_);
    own = own_;
    verdict = verdict_;
  }
  if (word.contains("goodbye")) {
    said_goodbye_.insert(from);
    absent_[from] = "has left the world";
    judge_if_complete();
  } else if (word.contains("verdict") && word["verdict"].is_string()) {
    conclude(word["verdict"].get<std::string>());
  } else if (word.contains("ask")) {
    if (verdict) {
      peers_->send(from, dump({{"verdict", *verdict}}));
      return;
    }
    peers_->send(from, dump({{"answer", to_json(describe_())}, {"notice", to_json_value(own)}}));
    if (judge_ && *judge_ < from) return;
    judge_ = from;
    deadline_ = SteadyClock::now() + kVerdict;
  } else if (word.contains("answer") && word["answer"].is_string()) {
    try {
      answers_[from] = parse_record(word["answer"].get<std::string>());
      if (const auto notice = notice_in(word["notice"])) notices_[from] = *notice;
    } catch (const Error&) {
      absent_[from] = "answers what cannot be understood";
    }
    judge_if_complete();
  }
}

void FailureWatch::on_gone(int process, const std::string& why) {
  if (said_goodbye_.contains(process)) return;
  absent_[process] = why.empty() ? "is gone: its connections have closed" : "cannot be reached: " + why;
  if (end_) return;  // it is leaving time
  if (!judge_ || *judge_ == process) {
    ask();
  } else {
    judge_if_complete();
  }
}

void FailureWatch::on_late() {
  if (judge_ == peers_->rank()) {
    for (int process = 0; process < peers_->size(); ++process) {
      if (process != peers_->rank() && !answers_.contains(process)) absent_.emplace(process, kSilent);
    }
    judge_if_complete();
  } else if (judge_) {
    // Who was to judge does not: it is what others will find, too.
    absent_.emplace(*judge_, kSilent);
    ask();
  }
}

void FailureWatch::judge_if_complete() {
  if (judge_ != peers_->rank() || over()) return;
  for (int process = 0; process < peers_->size(); ++process) {
    if (process != peers_->rank() && is_there(process) && !answers_.contains(process)) return;
  }
  const std::string verdict = judge();
  peers_->send_all(dump({{"verdict", verdict}}));
  conclude(verdict);
}

std::string FailureWatch::judge() {
  {
    const std::lock_guard lock(mutex_);
    if (own_) notices_[peers_->rank()] = *own_;
  }
  const Notice* surest = nullptr;
  for (const auto& [process, notice] : notices_) {
    if (!surest || notice.kind < surest->kind) surest = &notice;
  }
  if (surest && surest->kind == Notice::Kind::Thrown) return surest->word;

  answers_[peers_->rank()] = describe_();
  std::vector<ProcessRecord> records;
  for (const auto& [process, record] : answers_) {
    if (is_there(process)) records.push_back(record);
  }
  const auto others = static_cast<std::size_t>(peers_->size()) - 1;
  std::string found;
  if (others > 1 && absent_.size() == others && said_goodbye_.empty()) {
    found = "process " + std::to_string(peers_->rank()) +
            " reaches none of the others: it is cut off, or they are all gone";
  } else if (const Diagnosis diagnosis = diagnose(records, absent_); !diagnosis.culprits.empty()) {
    // Who has left in order may have done so because all was done.
    auto culprit = std::ranges::find_if(
        diagnosis.culprits, [this](const Culprit& each) { return !said_goodbye_.contains(each.process); });
    if (culprit == diagnosis.culprits.end()) culprit = diagnosis.culprits.begin();
    found = culprit->text;
  }
  const std::string noticed =
      surest ? surest->word : waiting_word(answers_, absent_).value_or(to_word({-1, -1}, Action{}, ""));
  return with_text(noticed, found);
}

void FailureWatch::conclude(const std::string& verdict) {
  {
    const std::lock_guard lock(mutex_);
    if (verdict_) return;
    verdict_ = verdict;
  }
  deadline_.reset();
  tell_(verdict);
  {
    const std::lock_guard lock(mutex_);
    told_ = true;
  }
  changed_.notify_all();
}

}  // namespace pipewright
