#include "frontend/tensors/pickle.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

using Kind = Pickle::Node::Kind;

/// A machine with a stack, as the format is one.
class PickleReader {
 public:
  explicit PickleReader(std::string_view bytes) : bytes_(bytes) {}

  Pickle read() {
    while (true) {
      const char code = take(1)[0];
      if (code == '.') break;
      run(code);
    }
    pickle_.root = pop();
    return std::move(pickle_);
  }

 private:
  using Value = Pickle::Value;

  [[noreturn]] static void damaged() { throw ParseError("its pickle is damaged"); }

  std::string_view take(std::size_t size) {
    if (size > bytes_.size() - at_) damaged();
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }

  /// Little-endian.
  template <typename Number>
  Number number() {
    Number read;
    std::memcpy(&read, take(sizeof read).data(), sizeof read);
    return read;
  }

  std::string_view line() {
    const std::size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) damaged();
    const std::string_view text = take(end - at_);
    take(1);
    return text;
  }

  Value pop() {
    if (stack_.size() <= floor()) damaged();
    Value value = std::move(stack_.back());
    stack_.pop_back();
    return value;
  }

  /// What is below the last mark is not to be touched.
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  std::vector<Value> pop_to_mark() {
    if (marks_.empty()) damaged();
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Value> values(std::make_move_iterator(from), std::make_move_iterator(stack_.end()));
    stack_.erase(from, stack_.end());
    marks_.pop_back();
    return values;
  }

  std::vector<Value> pop_last(std::size_t count) {
    if (stack_.size() < floor() + count) damaged();
    const auto from = stack_.end() - static_cast<std::ptrdiff_t>(count);
    std::vector<Value> values(std::make_move_iterator(from), std::make_move_iterator(stack_.end()));
    stack_.erase(from, stack_.end());
    return values;
  }

  void push_node(Kind kind, std::vector<Value> items = {}, Pickle::Global callee = {},
                 std::size_t arguments = 0) {
    pickle_.nodes.push_back({kind, std::move(items), callee, arguments});
    stack_.emplace_back(Pickle::Reference{pickle_.nodes.size() - 1});
  }

  Pickle::Node& top_node() {
    if (stack_.size() <= floor()) damaged();
    const auto* reference = std::get_if<Pickle::Reference>(&stack_.back());
    if (!reference) damaged();
    return pickle_.nodes[reference->node];
  }

  void append(std::vector<Value> values) {
    Pickle::Node& node = top_node();
    if (node.kind != Kind::List) damaged();
    std::ranges::move(values, std::back_inserter(node.items));
  }

  void set_items(std::vector<Value> values) {
    Pickle::Node& node = top_node();
    if (values.size() % 2 != 0 || (node.kind != Kind::Dictionary && node.kind != Kind::Call)) damaged();
    std::ranges::move(values, std::back_inserter(node.items));
  }

  void call() {
    const Value arguments = pop();
    const Value callee = pop();
    const auto* function = std::get_if<Pickle::Global>(&callee);
    const auto* tuple = std::get_if<Pickle::Reference>(&arguments);
    if (!function || !tuple || pickle_.nodes[tuple->node].kind != Kind::Tuple) damaged();
    push_node(Kind::Call, {}, *function, tuple->node);
  }

  void put(std::size_t index) {
    if (stack_.size() <= floor()) damaged();
    memo_[index] = stack_.back();
  }

  void get(std::size_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) damaged();
    stack_.push_back(found->second);
  }

  void long_integer() {
    const auto size = number<std::uint8_t>();
    if (size > sizeof(std::int64_t)) throw ParseError("its pickle has a number that is too large");
    const std::string_view bytes = take(size);
    const bool negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80U) != 0;
    std::int64_t value = negative ? -1 : 0;
    std::memcpy(&value, bytes.data(), bytes.size());
    stack_.emplace_back(value);
  }

  void global() {
    const std::string_view module = line();
    stack_.emplace_back(Pickle::Global{module, line()});
  }

  void run(char code) {
    switch (code) {
      case '\x80':
        if (number<std::uint8_t>() > 2) throw ParseError("its pickle is of a protocol later than 2");
        break;
      case '(': marks_.push_back(stack_.size()); break;
      case 'N': stack_.emplace_back(); break;
      case '\x88': stack_.emplace_back(true); break;
      case '\x89': stack_.emplace_back(false); break;
      case 'J': stack_.emplace_back(std::int64_t{number<std::int32_t>()}); break;
      case 'K': stack_.emplace_back(std::int64_t{number<std::uint8_t>()}); break;
      case 'M': stack_.emplace_back(std::int64_t{number<std::uint16_t>()}); break;
      case '\x8a': long_integer(); break;
      case 'G': stack_.emplace_back(std::bit_cast<double>(__builtin_bswap64(number<std::uint64_t>()))); break;
      case 'X': stack_.emplace_back(take(number<std::uint32_t>())); break;
      case 'c': global(); break;
      case 'q': put(number<std::uint8_t>()); break;
      case 'r': put(number<std::uint32_t>()); break;
      case 'h': get(number<std::uint8_t>()); break;
      case 'j': get(number<std::uint32_t>()); break;
      case ')': push_node(Kind::Tuple); break;
      case ']': push_node(Kind::List); break;
      case '}': push_node(Kind::Dictionary); break;
      case '\x85': push_node(Kind::Tuple, pop_last(1)); break;
      case '\x86': push_node(Kind::Tuple, pop_last(2)); break;
      case '\x87': push_node(Kind::Tuple, pop_last(3)); break;
      case 't': push_node(Kind::Tuple, pop_to_mark()); break;
      case 'a': append(pop_last(1)); break;
      case 'e': append(pop_to_mark()); break;
      case 's': set_items(pop_last(2)); break;
      case 'u': set_items(pop_to_mark()); break;
      case 'R':
      case '\x81': call(); break;
      case 'Q': push_node(Kind::Persistent, pop_last(1)); break;
      case 'b': pop(); break;  // attributes of the object below
      default:
        throw ParseError("its pickle has an instruction that is not supported: " +
                         std::to_string(static_cast<unsigned char>(code)));
    }
  }

  std::string_view bytes_;
  std::size_t at_ = 0;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::size_t, Value> memo_;
  Pickle pickle_;
};

}  // namespace

Pickle read_pickle(std::string_view bytes) { return PickleReader(bytes).read(); }

}  // namespace pipewright
