#include "runtime/world/running_system.h"

#include <fstream>

namespace pipewright {

std::string running_system() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::getline(file, text);
  text.resize(kSystemText);
  return text;
}

}  // namespace pipewright
