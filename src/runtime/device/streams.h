#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>

#include "pipewright/runtime/values.h"

namespace pipewright {

// Only on devices other than the CPU, where everything is done at once.

/// A stream of its own.
c10::Stream new_stream(c10::Device device);

/// That of the calling thread.
c10::Stream current_stream(c10::Device device);

/// What is given to one stream from now on waits for what another has been given so far.
void wait_for(c10::Stream waits, c10::Stream for_what);

/// A point in what a stream does.
using Mark = std::shared_ptr<c10::Event>;
enum class Timed : bool { No, Yes };
/// On the calling thread's current stream.
Mark mark(c10::Device device, Timed timed);

/// Waits until a device has done everything that it was given.
void wait_until_done(c10::Device device);

/// From one timed mark to another on the same device, which were reached.
double milliseconds_between(const c10::Event& start, const c10::Event& end);

/// Keeps the memory of values from being used anew, once they are gone, until a stream has done what it was
/// given so far. Needed where it is not the stream on which they were made.
void keep_for(const Values& values, c10::Stream stream);

}  // namespace pipewright
