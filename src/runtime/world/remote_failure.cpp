#include "runtime/world/remote_failure.h"

#include <nlohmann/json.hpp>

#include <vector>

namespace pipewright {
namespace {

constexpr const char* kOver = "\nThe world is over: start its processes again.";

}  // namespace

std::string place_text(Position position, Action action, int replicas) {
  if (position.rank < 0) return {};  // the process as a whole
  return (replicas > 1 ? "replica " + std::to_string(position.replica) + ", " : "") + "rank " +
         std::to_string(position.rank) + ", " + to_text(action) + " (stage " + std::to_string(action.stage) +
         "): ";
}

std::string to_word(Position position, Action action, const std::string& what) {
  return nlohmann::json{
      {"replica", position.replica}, {"rank", position.rank}, {"action", to_text(action)}, {"what", what}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string with_text(const std::string& word, const std::string& more) {
  const auto joined = [&](const std::string& what) {
    return what + (what.empty() || more.empty() ? "" : "; ") + more;
  };
  auto parsed = nlohmann::json::parse(word, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return joined(word);
  parsed["what"] = joined(parsed["what"].get<std::string>());
  return parsed.dump();
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
