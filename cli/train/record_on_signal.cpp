#include "train/record_on_signal.h"

#include <csignal>
#include <utility>

namespace pipewright::cli {
namespace {

sigset_t record_signal() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  return signals;
}

}  // namespace

void hold_record_signal() {
  const sigset_t signals = record_signal();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

RecordOnSignal::RecordOnSignal(std::function<void()> record)
    : thread_([this, record = std::move(record)] {
        const sigset_t signals = record_signal();
        for (int number = 0; sigwait(&signals, &number) == 0 && !ended_;) record();
      }) {}

RecordOnSignal::~RecordOnSignal() {
  ended_ = true;
  pthread_kill(thread_.native_handle(), SIGUSR1);
  thread_.join();
}

}  // namespace pipewright::cli
