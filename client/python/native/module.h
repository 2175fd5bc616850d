// The parts of the native module, and functions that several of them use.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "client/cpp/sequence_record.h"

#ifdef Py_LIMITED_API
// Every CPython >= 3.4 exports it, but the headers of the stable ABI leave it out.
extern "C" int PyGILState_Check();
#endif

namespace sortition::python {

void BindClient(nanobind::module_& module);
void BindLocal(nanobind::module_& module);

// Makes the options of a sequence. `message` is a serialized sortition.v1.OpenSequence without history; the prompt is
// passed separately, so that protobuf does not copy it. Raises ValueError.
client::SequenceOptions ParseSequence(nanobind::bytes message, std::vector<uint32_t> prompt,
                                      std::optional<uint32_t> start_position);

// Converts the argument `name`. Raises ValueError for a number that is no duration.
absl::Duration ToDuration(const char* name, double seconds);

// Marks a thread of a client as running a callback. The last reference to any object may be dropped within it, because
// Python's garbage collector may run at any allocation.
class InCallback {
 public:
  InCallback() { here_ = true; }
  ~InCallback() { here_ = false; }
  static bool here() { return here_; }

 private:
  static thread_local bool here_;
};

// Notes the process in which an object was made. A process that was forked has none of the threads that its parent's
// objects wait for, and shares their connections: it must neither use nor destroy them.
class Home {
 public:
  bool is_left() const { return forks_ != forks_so_far_; }

 private:
  friend void CountForks();
  static uint64_t forks_so_far_;  // from the process that loaded the module to this one
  uint64_t forks_ = forks_so_far_;
};

// Deletes an object whose destructor waits for a device or a server, without the GIL. Made with the object: in a
// process that was forked since then it does nothing.
struct DeleteWithoutGil {
  Home home = {};

  template <typename T>
  void operator()(T* last) const {
    if (home.is_left()) return;
    if (PyGILState_Check() == 0) {
      delete last;
      return;
    }
    nanobind::gil_scoped_release released;
    delete last;
  }
};

// Deletes an object whose destructor waits until a device has done all its work. In a callback another thread deletes
// it: that work may wait for a result that this thread delivers next.
struct DeleteAfterDevice {
  DeleteWithoutGil waiting = {};

  template <typename T>
  void operator()(T* last) const {
    if (InCallback::here() && !waiting.home.is_left()) {
      std::thread([last] { delete last; }).detach();
    } else {
      waiting(last);
    }
  }
};

}  // namespace sortition::python
