#include "train/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "pipewright/base/error.h"

namespace pipewright::cli {
namespace {

constexpr int kLines = 20;

void print(const std::string& text) {
  std::cout << text << std::flush;
  if (!std::cout) throw Error("cannot write to standard output");
}

/// 1:05 for 65 seconds.
std::string clock_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::lround(seconds));
  std::ostringstream out;
  out << whole / 60 << ':' << std::setfill('0') << std::setw(2) << whole % 60;
  return out.str();
}

/// A bar that leaves room for the text in a line of the terminal; empty where there is none.
std::string bar_text(int done, int steps, int columns) {
  constexpr int kLeast = 4;
  constexpr int kMost = 24;
  const int width = std::min(kMost, columns - 2);
  if (width < kLeast) return {};
  const int filled = static_cast<int>(std::int64_t{width} * done / steps);
  std::string text;
  for (int i = 0; i < width; ++i) text += i < filled ? "█" : "░";
  return text + "  ";
}

int terminal_columns() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/// The time so far, and what it says about the rest.
struct Pace {
  int steps;
  double items_per_step;
  std::string item;
  double seconds = 0;

  std::string text(const StepRecord& record) {
    seconds += record.seconds;
    const double left = seconds / record.step * (steps - record.step);
    std::ostringstream out;
    out << std::fixed << "step " << std::setw(static_cast<int>(std::to_string(steps).size())) << record.step
        << '/' << steps << "  loss " << std::setprecision(3) << record.loss << "  " << std::setprecision(0)
        << items_per_step / record.seconds << ' ' << item << "/s  ";
    if (record.bubble) out << "bubble " << std::setprecision(1) << 100 * *record.bubble << " %  ";
    out << clock_text(left) << " left";
    return out.str();
  }
};

Pace pace_of(int steps, const Workload& work) {
  return {steps, static_cast<double>(work.items_per_step()), work.item()};
}

/// A line on the terminal that is drawn again and again; ended when nobody draws it any more.
class RedrawnLine {
 public:
  RedrawnLine() = default;
  RedrawnLine(const RedrawnLine&) = delete;
  RedrawnLine& operator=(const RedrawnLine&) = delete;
  ~RedrawnLine() {
    if (drawn_) std::cout << '\n' << std::flush;
  }

  void draw(const std::string& text) {
    drawn_ = true;
    print("\r" + text + "\x1b[K");
  }

 private:
  bool drawn_ = false;
};

}  // namespace

Progress json_progress() {
  return [](const StepRecord& record) {
    nlohmann::ordered_json line = {{"step", record.step},
                                   {"loss", record.loss},
                                   {"grad_norm", record.grad_norm},
                                   {"seconds", record.seconds},
                                   {"bubble", nullptr},
                                   {"peak_memory", record.peak_memory.resident},
                                   {"peak_device_memory", record.peak_memory.device}};
    if (record.bubble) line["bubble"] = *record.bubble;
    print(line.dump() + "\n");
  };
}

Progress bar_progress(int steps, const Workload& work) {
  return [line = std::make_shared<RedrawnLine>(),
          pace = pace_of(steps, work)](const StepRecord& record) mutable {
    const auto columns = static_cast<std::size_t>(terminal_columns() - 1);
    const std::string text = pace.text(record).substr(0, columns);
    line->draw(bar_text(record.step, pace.steps, static_cast<int>(columns - text.size())) + text);
  };
}

Progress line_progress(int steps, const Workload& work) {
  return [pace = pace_of(steps, work)](const StepRecord& record) mutable {
    const std::string text = pace.text(record);
    const int every = (pace.steps + kLines - 1) / kLines;
    if (record.step == 1 || record.step % every == 0 || record.step == pace.steps) print(text + "\n");
  };
}

}  // namespace pipewright::cli
