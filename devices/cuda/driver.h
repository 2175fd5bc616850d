// The part of the CUDA driver's binary interface that is called here, declared here: the tree builds without CUDA's
// headers, and the driver is found at run time. Where the headers are installed, a test compares the two.
#pragma once

#include <cstddef>
#include <cstdint>

// The driver's own names for what its handles point to.
struct CUctx_st;
struct CUmod_st;
struct CUfunc_st;
struct CUstream_st;
struct CUevent_st;

namespace sortition::devices::cuda {

// As in CUDA's cuda.h. Handles are pointers, a device's address is a number.
enum class Result : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeviceUnavailable = 46,
  kNoDevice = 100,
  kInvalidImage = 200,
  kNoBinaryForGpu = 209,
  kEccUncorrectable = 214,
  kUnsupportedPtxVersion = 222,
  kIllegalAddress = 700,
  kLaunchTimeout = 702,
  kContextIsDestroyed = 709,
  kAssert = 710,
  kHardwareStackError = 714,
  kIllegalInstruction = 715,
  kMisalignedAddress = 716,
  kInvalidAddressSpace = 717,
  kInvalidPc = 718,
  kLaunchFailed = 719,
  kSystemNotReady = 802,
  kSystemDriverMismatch = 803,
};

using DeviceHandle = int;
using DevicePointer = unsigned long long;
using ContextHandle = ::CUctx_st*;
using ModuleHandle = ::CUmod_st*;
using FunctionHandle = ::CUfunc_st*;
using StreamHandle = ::CUstream_st*;
using EventHandle = ::CUevent_st*;

struct Uuid {
  unsigned char bytes[16];
};

enum class DeviceAttribute : int {
  kMultiprocessors = 16,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
};
enum class PointerAttribute : int { kDeviceOrdinal = 9 };
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDefault = 0;
inline constexpr unsigned kEventBlockingSync = 1;
inline constexpr int kFunctionRegisters = 4;

}  // namespace sortition::devices::cuda
