#pragma once

#include <filesystem>
#include <mutex>
#include <string>

#include "pipewright/runtime/errors.h"
#include "pipewright/runtime/world.h"
#include "runtime/flight/flight_recorder.h"

namespace pipewright {

/// Makes of what a pipeline notices the error that is shown: what has failed first, the same in all
/// processes, who is to blame for a wait in vain, and where the flight record is.
class Settlement {
 public:
  /// Both are kept by reference and outlive it; the world may be null. `directory`: for the flight records;
  /// empty: none are written.
  Settlement(World* world, const FlightRecorder& recorder, std::filesystem::path directory)
      : world_(world), recorder_(recorder), directory_(std::move(directory)) {}

  /// From any thread.
  StepError settle(const StepError& noticed);
  /// What the others have settled.
  StepError heard(const std::string& word);
  /// The next failure is another one.
  void begin_step();

  /// What this process does, with what it waits for outside its ranks' actions.
  ProcessRecord describe() const;

 private:
  StepError recorded(const StepError& error);

  World* const world_;
  const FlightRecorder& recorder_;
  const std::filesystem::path directory_;
  std::mutex mutex_;
  std::filesystem::path written_;  // for this failure
};

}  // namespace pipewright
