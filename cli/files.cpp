#include "files.h"

#include <array>
#include <fstream>
#include <iostream>

#include "pipewright/base/error.h"
#include "pipewright/schedule/csv.h"

namespace pipewright::cli {

Schedule read_schedule(const std::string& path) {
  const std::string name = path == "-" ? "standard input" : path;
  try {
    if (path == "-") return parse_csv(std::cin);
    std::ifstream file(path, std::ios::binary);
    if (!file) throw ArgumentError("cannot open " + path);
    return parse_csv(file);
  } catch (const ParseError& error) {
    throw ParseError(name + ": " + error.what());
  } catch (const std::ios_base::failure&) {
    throw ArgumentError("cannot read " + name);
  }
}

std::string read_text(const std::string& path, std::size_t most) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw ArgumentError("cannot open " + path);
  std::string text;
  std::array<char, 1 << 16> block{};
  while (file.read(block.data(), block.size()) || file.gcount() > 0) {
    text.append(block.data(), static_cast<std::size_t>(file.gcount()));
    if (text.size() > most) throw Error(path + " is larger than " + std::to_string(most >> 20) + " MiB");
  }
  if (file.bad()) throw Error("cannot read " + path);
  return text;
}

void write_output(const std::string& path, const std::function<void(std::ostream&)>& write) {
  if (path.empty()) {
    write(std::cout);
    std::cout.flush();
    if (!std::cout) throw Error("cannot write to standard output");
    return;
  }
  std::ofstream file(path, std::ios::binary);
  if (!file) throw ArgumentError("cannot open " + path + " for writing");
  write(file);
  file.close();
  if (!file) throw Error("cannot write " + path + " to its end: is the disk full?");
  std::cerr << "wrote " << path << '\n';
}

void write_output(const std::string& path, const std::string& text) {
  write_output(path, [&](std::ostream& out) { out << text; });
}

}  // namespace pipewright::cli
