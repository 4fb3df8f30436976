#pragma once

#include <map>
#include <string>

namespace pipewright {

/// Counts, while it lives, the heavy operators that run on any thread: products, and the backwards
/// of convolution, norms and embedding, these by the gradients that they are asked for.
/// One at a time.
class OperatorCounter {
 public:
  OperatorCounter();
  ~OperatorCounter();
  OperatorCounter(const OperatorCounter&) = delete;
  OperatorCounter& operator=(const OperatorCounter&) = delete;

  /// All so far, by name.
  std::map<std::string, int> all() const;
  /// Those within the actions of one kind and stage, such as `1I`; outside of actions, the empty text.
  std::map<std::string, int> in(const std::string& action) const;
  /// Of any operator, also one that others call.
  int calls_of(const std::string& name) const;

 private:
  unsigned long long handle_;
};

}  // namespace pipewright
