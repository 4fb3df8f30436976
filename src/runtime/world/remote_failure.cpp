#include "runtime/world/remote_failure.h"

#include <nlohmann/json.hpp>

#include <vector>

namespace pipewright {
namespace {

constexpr const char* kOver = "\nThe world is over: start its processes again.";

}  // namespace

std::string to_word(const StepError& error) {
  return nlohmann::json{{"replica", error.replica},
                        {"rank", error.rank},
                        {"action", to_text(error.action)},
                        {"what", error.what()}}
      .dump();
}

StepError remote_failure(const std::string& word) {
  const auto make = [](int replica, Rank rank, Action action, const std::string& what) {
    return StepError(replica, rank, action, what + kOver, std::make_exception_ptr(Error(what)));
  };
  const auto parsed = nlohmann::json::parse(word, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return make(-1, -1, Action{}, word);
  std::vector<Action> cell;
  parse_cell(parsed["action"].get<std::string>(), cell);
  return make(parsed["replica"].get<int>(), parsed["rank"].get<Rank>(), cell.at(0),
              parsed["what"].get<std::string>());
}

}  // namespace pipewright
