#pragma once

#include <map>
#include <set>
#include <string>

namespace pipewright {

/// Gives names, each once.
class UniqueNames {
 public:
  /// The name itself, or where something has it, `NAME_1`, `NAME_2`...
  std::string give(const std::string& name) {
    std::string unique = name;
    for (int& last = last_[name]; !taken_.insert(unique).second;)
      unique = name + "_" + std::to_string(++last);
    return unique;
  }

 private:
  std::set<std::string> taken_;
  std::map<std::string, int> last_;
};

}  // namespace pipewright
