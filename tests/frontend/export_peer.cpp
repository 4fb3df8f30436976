// Reads and writes files that Python writes and reads. A line of the input is a command:
//   copy FROM TO    reads a file of tensors and writes another

#include <iostream>
#include <sstream>

#include "pipewright/frontend/tensor_file.h"

namespace pipewright {
namespace {

void run(const std::string& line) {
  std::istringstream words(line);
  std::string command;
  std::string from;
  std::string to;
  words >> command >> from >> to;
  if (command == "copy") {
    write_tensors(to, read_tensors(from));
  } else {
    throw std::runtime_error("unknown command " + command);
  }
}

}  // namespace
}  // namespace pipewright

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    try {
      pipewright::run(line);
      std::cout << "done" << std::endl;
    } catch (const std::exception& error) {
      std::cout << "error " << error.what() << std::endl;
    }
  }
}
