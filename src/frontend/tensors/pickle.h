#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace pipewright {

/// What a pickle describes, as data: calls in it are kept as what they are, never made. Of protocol 2, which
/// `torch.save` writes. Text is that of the pickle's bytes, which must live as long. (libtorch's own reader
/// trusts what it reads: the sizes and types of storages, and how deeply things are nested.)
struct Pickle {
  /// The name of a class or function, `_rebuild_tensor_v2` of `torch._utils`.
  struct Global {
    std::string_view module;
    std::string_view name;
    std::string text() const { return std::string(module) + "." + std::string(name); }
  };
  /// A node, by its index: nodes can be shared, and contain each other.
  struct Reference {
    std::size_t node;
  };
  using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string_view, Global, Reference>;
  struct Node {
    enum class Kind { Tuple, List, Dictionary, Call, Persistent };
    Kind kind;
    /// Keys and values in turn: of a dictionary, or of what a call gave, such as an `OrderedDict`. Of a
    /// persistent identity, itself.
    std::vector<Value> items;
    /// Of a call, what is called with which tuple.
    Global callee;
    std::size_t arguments = 0;
  };

  std::vector<Node> nodes;
  Value root;
};

/// Throws ParseError for a pickle that is damaged or has something that no dictionary of tensors has.
Pickle read_pickle(std::string_view bytes);

}  // namespace pipewright
