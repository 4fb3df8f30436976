#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "pipewright/base/error.h"
#include "pipewright/runtime/values.h"

namespace pipewright {
namespace detail {

// The parameter types of anything that can be called.
template <typename F>
struct Signature : Signature<decltype(&F::operator())> {};
template <typename R, typename... A>
struct Signature<R (*)(A...)> {
  using Arguments = std::tuple<std::decay_t<A>...>;
};
template <typename C, typename R, typename... A>
struct Signature<R (C::*)(A...)> : Signature<R (*)(A...)> {};
template <typename C, typename R, typename... A>
struct Signature<R (C::*)(A...) const> : Signature<R (*)(A...)> {};

template <typename F>
concept Callable = requires { &F::operator(); } || std::is_function_v<std::remove_pointer_t<F>>;

template <typename M, typename C, typename R, typename... A>
std::function<R(A...)> bind_forward(M* module, R (C::*forward)(A...)) {
  return [module, forward](A... arguments) -> R { return (module->*forward)(std::forward<A>(arguments)...); };
}
template <typename M, typename C, typename R, typename... A>
std::function<R(A...)> bind_forward(M* module, R (C::*forward)(A...) const) {
  return [module, forward](A... arguments) -> R { return (module->*forward)(std::forward<A>(arguments)...); };
}

template <typename T>
T argument_from(const at::Tensor& value) {
  if constexpr (std::is_same_v<T, std::optional<at::Tensor>>) {
    return value.defined() ? std::optional(value) : std::nullopt;
  } else {
    static_assert(std::is_same_v<T, at::Tensor>,
                  "a stage's forward takes tensors, optional tensors or one Values");
    return value;
  }
}

inline void append_value(Values& values, at::Tensor value) { values.push_back(std::move(value)); }
inline void append_value(Values& values, std::optional<at::Tensor> value) {
  values.push_back(value ? std::move(*value) : at::Tensor());
}

template <typename R>
Values values_from(R&& result) {
  if constexpr (std::is_same_v<std::decay_t<R>, Values>) {
    return std::forward<R>(result);
  } else {
    Values values;
    if constexpr (requires { std::tuple_size<std::decay_t<R>>::value; }) {
      std::apply([&](auto&&... each) { (append_value(values, std::move(each)), ...); },
                 std::forward<R>(result));
    } else {
      append_value(values, std::forward<R>(result));
    }
    return values;
  }
}

template <typename F, typename... A, std::size_t... I>
Values call_with(F& function, const Values& inputs, std::tuple<A...>*, std::index_sequence<I...>) {
  if (inputs.size() != sizeof...(A)) {
    throw ArgumentError("the stage's forward takes " + std::to_string(sizeof...(A)) + " values, got " +
                        std::to_string(inputs.size()));
  }
  return values_from(function(argument_from<A>(inputs[I])...));
}

}  // namespace detail

/// Anything that can be called with tensors, as a function from values to values.
template <typename F>
std::function<Values(const Values&)> make_forward(F function) {
  using Arguments = typename detail::Signature<F>::Arguments;
  if constexpr (std::is_same_v<Arguments, std::tuple<Values>>) {
    return [function = std::move(function)](const Values& inputs) mutable {
      return detail::values_from(function(inputs));
    };
  } else {
    return [function = std::move(function)](const Values& inputs) mutable {
      return detail::call_with(function, inputs, static_cast<Arguments*>(nullptr),
                               std::make_index_sequence<std::tuple_size_v<Arguments>>());
    };
  }
}

}  // namespace pipewright
