#include "runtime/device/streams.h"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace pipewright {

c10::Stream new_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void wait_for(c10::Stream waits, c10::Stream for_what) {
  if (waits == for_what) return;
  c10::Event reached(for_what.device_type());
  reached.record(for_what);
  reached.block(waits);
}

Mark mark(c10::Device device, Timed timed) {
  const auto flag = timed == Timed::Yes ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT;
  auto event = std::make_shared<c10::Event>(device.type(), flag);
  event->record(current_stream(device));
  return event;
}

void wait_until_done(c10::Device device) {
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

double milliseconds_between(const c10::Event& start, const c10::Event& end) { return start.elapsedTime(end); }

void keep_for(const Values& values, c10::Stream stream) {
  for (const at::Tensor& value : values) {
    if (!value.defined() || value.device() != stream.device()) continue;
    if (value.layout() == c10::kSparse) {
      keep_for({value._indices(), value._values()}, stream);
    } else if (value.has_storage()) {
      value.record_stream(stream);
    }
  }
}

}  // namespace pipewright
