#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "commands.h"
#include "files.h"
#include "options.h"
#include "pipewright/base/error.h"
#include "pipewright/flight/diagnose.h"
#include "pipewright/flight/drawing.h"

namespace pipewright::cli {
namespace {

constexpr std::size_t kLargestRecord = 64 << 20;
/// Measured boxes differ too much in length for the width of their text to be of use.
constexpr int kColumns = 100;

struct Options {
  std::vector<std::string> files;
  TimelineOptions timeline{.columns = kColumns};
  std::string page;
};

bool is_svg(const std::string& path) { return path.ends_with(".svg"); }

const CLI::Validator kDrawingFile(
    [](const std::string& path) -> std::string {
      return is_svg(path) || path.ends_with(".html") ? "" : path + " must end in .html or .svg";
    },
    "FILE.html|FILE.svg");

ProcessRecord read_record(const std::string& path) {
  try {
    return parse_record(read_text(path, kLargestRecord));
  } catch (const ParseError& error) {
    throw ParseError(path + ": " + error.what());
  }
}

bool of_one_world(const ProcessRecord& a, const ProcessRecord& b) {
  return a.processes == b.processes && a.placement == b.placement && a.process_of == b.process_of;
}

/// In the order of their processes.
std::vector<ProcessRecord> read_world(const std::vector<std::string>& files) {
  std::vector<ProcessRecord> world;
  std::map<int, std::string> file_of;
  for (const std::string& file : files) {
    world.push_back(read_record(file));
    const int process = world.back().process;
    const auto [other, is_new] = file_of.emplace(process, file);
    if (!is_new) {
      throw Error(other->second + " and " + file + " are both of process " + std::to_string(process));
    }
    if (!of_one_world(world.front(), world.back())) {
      throw Error(files.front() + " and " + file + " are not of the same run");
    }
  }
  std::ranges::sort(world, {}, &ProcessRecord::process);
  return world;
}

/// The first line, with nothing in it that a terminal would obey.
std::string line_of(const std::string& text) {
  std::string line = text.substr(0, text.find('\n'));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  }
  return line;
}

std::string process_line(const ProcessRecord& record) {
  std::string line = "process " + std::to_string(record.process);
  if (const std::string ranks = ranks_text(record, record.process); !ranks.empty())
    line += " (" + ranks + ")";
  line += " on " + record.host + ", pid " + std::to_string(record.pid) + ": ";
  if (record.in_step) {
    line += "in step " + std::to_string(record.step);
  } else {
    line += record.step == 0 ? "before its first step" : "after step " + std::to_string(record.step);
  }
  return line_of(line) + "; written because: " + line_of(record.because);
}

/// `2, 5-7`: the processes that no record is of; empty where there are all.
std::string missing(const std::vector<ProcessRecord>& world) {
  std::string text;
  const auto add = [&](int from, int to) {
    if (from > to) return;
    text += (text.empty() ? "" : ", ") + std::to_string(from);
    if (to > from) text += "-" + std::to_string(to);
  };
  int next = 0;
  for (const ProcessRecord& record : world) {
    add(next, record.process - 1);
    next = record.process + 1;
  }
  add(next, world.front().processes - 1);
  return text;
}

void print_processes(const std::vector<ProcessRecord>& world, std::ostream& out) {
  for (const ProcessRecord& record : world) out << process_line(record) << '\n';
  if (const std::string processes = missing(world); !processes.empty()) {
    out << "no file of process " << processes << '\n';
  }
}

void print_diagnosis(const Diagnosis& diagnosis, std::ostream& out) {
  if (diagnosis.waits.empty()) {
    out << "\nNobody waits for anybody.\n";
    return;
  }
  out << "\nWho waits for whom:\n";
  for (const std::string& wait : diagnosis.waits) out << "  " << line_of(wait) << '\n';
  out << '\n';
  const char* title = "Culprit: ";
  for (const Culprit& culprit : diagnosis.culprits) {
    out << title << line_of(culprit.text) << '\n';
    title = "   also: ";
  }
}

/// The replica of the likeliest culprit.
int replica_of_culprit(const Diagnosis& diagnosis, const ProcessRecord& world) {
  if (diagnosis.culprits.empty()) return 0;
  const Culprit& culprit = diagnosis.culprits.front();
  if (culprit.replica >= 0) return culprit.replica;
  const auto first = std::ranges::find_if(world.process_of, [&](const std::vector<int>& replica) {
    return std::ranges::count(replica, culprit.process) > 0;
  });
  return first == world.process_of.end() ? 0 : static_cast<int>(first - world.process_of.begin());
}

/// That replica or, where no record has an action of it, the first that there is one of.
int replica_to_draw(const Diagnosis& diagnosis, const std::vector<ProcessRecord>& world) {
  std::set<int> recorded;
  for (const ProcessRecord& record : world) {
    for (const RankRecord& rank : record.ranks) {
      if (!rank.actions.empty()) recorded.insert(rank.replica);
    }
  }
  const int wanted = replica_of_culprit(diagnosis, world.front());
  return recorded.empty() || recorded.contains(wanted) ? wanted : *recorded.begin();
}

void run(const Options& options) {
  const std::vector<ProcessRecord> world = read_world(options.files);
  const Diagnosis diagnosis = diagnose(world);
  std::ostringstream out;
  print_processes(world, out);
  print_diagnosis(diagnosis, out);
  if (world.front().process_of.empty()) {
    write_output("", out.str());
    if (!options.page.empty()) throw Error("the records have no pipeline to draw");
    return;
  }

  const Drawing drawing = draw_last_step(world, replica_to_draw(diagnosis, world));
  out << '\n' << render_terminal(drawing, options.timeline.load(/*to_file=*/false));
  write_output("", out.str());
  if (options.page.empty()) return;
  write_output(options.page, is_svg(options.page)
                                 ? render_svg(drawing)
                                 : render_html("Pipewright: " + drawing.name + ", recorded", {&drawing, 1}));
}

}  // namespace

void add_explain(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand(
      "explain", "Read the flight records of a training that hung or failed: who waits for whom");
  command->add_option("files", options->files, "Flight records, one of each process")->required();
  options->timeline.add_to(*command);
  command->add_option("--timeline", options->page, "Draw the last step to this file, too: .html or .svg")
      ->check(kDrawingFile);
  command->callback([options] { run(*options); });
}

}  // namespace pipewright::cli
