#include "runtime/executor/rank_streams.h"

#include "runtime/device/streams.h"

namespace pipewright {

RankStreams::RankStreams(const RankDevices& devices, c10::Device device) {
  if (device.is_cpu() || !devices.own_streams) return;
  both_ = {.compute = new_stream(device), .beside = new_stream(device)};
}

std::optional<c10::Stream> RankStreams::of(Lane lane) const {
  if (!both_) return std::nullopt;
  return lane == Lane::Beside ? both_->beside : both_->compute;
}

void RankStreams::fork() const {
  if (both_) wait_for(both_->beside, both_->compute);
}

void RankStreams::join() const {
  if (both_) wait_for(both_->compute, both_->beside);
}

void RankStreams::take(const Values& values, Lane lane) const {
  if (both_ && lane == Lane::Beside) keep_for(values, both_->beside);
}

void RankStreams::give(const Values& values, Lane lane) const {
  if (both_ && lane == Lane::Beside) keep_for(values, both_->compute);
}

RankStreams::On::On(const RankStreams& streams, Lane lane) {
  if (!streams.both_ || lane == Lane::Compute) return;
  const c10::Stream beside = streams.both_->beside;
  if (current_stream(beside.device()) == beside) return;
  crossed_ = &streams;
  streams.fork();
  guard_.reset_stream(beside);
}

RankStreams::On::~On() {
  if (crossed_) crossed_->join();
}

}  // namespace pipewright
