#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <cstdint>
#include <optional>

#include "pipewright/runtime/values.h"
#include "runtime/device/rank_devices.h"

namespace pipewright {

/// Which of a rank's streams a microbatch runs on, on one stage. Its backward runs where its forward ran,
/// because autograd does so.
enum class Lane : std::uint8_t { Compute, Beside };
constexpr Lane other(Lane lane) { return lane == Lane::Compute ? Lane::Beside : Lane::Compute; }

/// The streams on which a rank computes: one, and a second for the other part of an OVERLAP_F_B. There are
/// none on the CPU, nor where the threads' own are used; then nothing here has an effect.
class RankStreams {
 public:
  RankStreams(const RankDevices& devices, c10::Device device);

  std::optional<c10::Stream> of(Lane lane) const;

  /// The second comes after what the first has been given so far; and the other way round.
  void fork() const;
  void join() const;

  /// For values that are made on the first stream and used on a microbatch's own.
  void take(const Values& values, Lane lane) const;
  /// For values that are made on a microbatch's own stream and used on the first.
  void give(const Values& values, Lane lane) const;

  /// While it lives, the thread computes on a microbatch's stream, between all that the first is given before
  /// and afterwards. The parts of a cell that run at the same time are there already.
  class On {
   public:
    On(const RankStreams& streams, Lane lane);
    ~On();
    On(const On&) = delete;
    On& operator=(const On&) = delete;

   private:
    const RankStreams* crossed_ = nullptr;
    c10::OptionalStreamGuard guard_;
  };

 private:
  struct Both {
    c10::Stream compute;
    c10::Stream beside;
  };
  std::optional<Both> both_;
};

}  // namespace pipewright
