#include "frontend/trace/operators.h"

#include <algorithm>
#include <set>
#include <string>

namespace pipewright {
namespace {

bool has_tensor(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::TensorType) return true;
  return std::ranges::any_of(type.containedTypes(),
                             [](const c10::TypePtr& each) { return has_tensor(*each); });
}

bool gives_no_tensor(const c10::FunctionSchema& schema) {
  return !schema.returns().empty() && std::ranges::none_of(schema.returns(), [](const c10::Argument& each) {
    return has_tensor(*each.type());
  });
}

}  // namespace

bool gives_metadata(const c10::FunctionSchema& schema) {
  static const std::set<std::string> names = {"aten::_fused_sdp_choice",
                                              "aten::_has_compatible_shallow_copy_type",
                                              "aten::_has_same_storage_numel",
                                              "aten::_use_cudnn_ctc_loss",
                                              "aten::_version",
                                              "aten::can_cast",
                                              "aten::cudnn_is_acceptable",
                                              "aten::dim",
                                              "aten::element_size",
                                              "aten::get_device",
                                              "aten::is_complex",
                                              "aten::is_conj",
                                              "aten::is_contiguous",
                                              "aten::is_floating_point",
                                              "aten::is_inference",
                                              "aten::is_leaf",
                                              "aten::is_neg",
                                              "aten::is_non_overlapping_and_dense",
                                              "aten::is_pinned",
                                              "aten::is_same_size",
                                              "aten::is_set_to",
                                              "aten::is_signed",
                                              "aten::numel",
                                              "aten::output_nr",
                                              "aten::promote_types",
                                              "aten::result_type",
                                              "aten::retains_grad",
                                              "aten::size",
                                              "aten::storage_offset",
                                              "aten::stride",
                                              "aten::sym_is_contiguous",
                                              "aten::sym_numel",
                                              "aten::sym_size",
                                              "aten::sym_storage_offset",
                                              "aten::sym_stride"};
  return gives_no_tensor(schema) && names.contains(schema.name());
}

bool gives_data_to_program(const c10::FunctionSchema& schema) {
  return gives_no_tensor(schema) && !gives_metadata(schema);
}

bool makes_unwritten(const c10::FunctionSchema& schema) {
  static const std::set<std::string> names = {"aten::empty",          "aten::empty_like",
                                              "aten::empty_permuted", "aten::empty_strided",
                                              "aten::new_empty",      "aten::new_empty_strided"};
  return names.contains(schema.name());
}

bool overwrites(const c10::FunctionSchema& schema, const c10::Argument& argument) {
  static const std::set<std::string> names = {
      "aten::bernoulli_",      "aten::cauchy_",        "aten::copy_",       "aten::exponential_",
      "aten::fill_",           "aten::fill_diagonal_", "aten::geometric_",  "aten::index_copy_",
      "aten::index_fill_",     "aten::index_put_",     "aten::log_normal_", "aten::masked_fill_",
      "aten::masked_scatter_", "aten::normal_",        "aten::random_",     "aten::scatter_",
      "aten::uniform_",        "aten::zero_"};
  return argument.is_out() ||
         (argument.alias_info() && argument.alias_info()->isWrite() && names.contains(schema.name()));
}

}  // namespace pipewright
