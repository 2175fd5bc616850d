// Declarations of the CUDA driver functions that are called here. The tree builds without CUDA's headers, and the
// driver is found at run time. If the headers are installed, a test compares them with this file.
#pragma once

#include <cstddef>
#include <cstdint>

// The driver's own names for the types behind its handles.
struct CUctx_st;
struct CUmod_st;
struct CUfunc_st;
struct CUstream_st;
struct CUevent_st;

namespace sortition::devices::cuda {

// As in CUDA's cuda.h. A handle is a pointer, a device address is a number.
enum class Result : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kDeviceUnavailable = 46,
  kNoDevice = 100,
  kInvalidImage = 200,
  kNoBinaryForGpu = 209,
  kEccUncorrectable = 214,
  kNvlinkUncorrectable = 220,
  kUnsupportedPtxVersion = 222,
  kContained = 226,
  kNotReady = 600,
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
  kTensorMemoryLeak = 721,
  kNotSupported = 801,
  kSystemNotReady = 802,
  kSystemDriverMismatch = 803,
  kStreamCaptureUnsupported = 900,
  kStreamCaptureInvalidated = 901,
  kExternalDevice = 911,
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
  kVirtualMemoryManagement = 102,
  kFileDescriptorHandles = 103,
  kMemoryPools = 115,
};
enum class PointerAttribute : int { kMemoryType = 2, kDeviceOrdinal = 9 };
// How a thread's calls and captures of graphs by other threads affect each other.
enum class CaptureMode : int { kGlobal = 0, kRelaxed = 2 };
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kHostRegisterDeviceMap = 2;
inline constexpr unsigned kWaitUntilNotBefore = 0;  // CU_STREAM_WAIT_VALUE_GEQ: cyclically
inline ::CUstream_st* const kStreamLegacy = reinterpret_cast<::CUstream_st*>(uintptr_t{1});  // the null stream, by name
inline constexpr unsigned kEventDefault = 0;
inline constexpr unsigned kEventBlockingSync = 1;
inline constexpr int kFunctionRegisters = 4;

// Parameters of a copy of lines of equal length, at equal distances on each side.
enum class MemoryType : int { kHost = 1, kDevice = 2 };
struct CopySide {
  size_t x_bytes = 0;
  size_t y = 0;
  MemoryType type = MemoryType::kDevice;
  void* host = nullptr;
  DevicePointer device = 0;
  void* array = nullptr;
  size_t pitch = 0;  // from line to line
};
struct Copy2D {
  CopySide from;
  CopySide to;
  size_t width_bytes = 0;
  size_t height = 0;
};
inline constexpr size_t kMostPitch = 0x7fffffff;

// An allocation without addresses, which can be passed to other processes.
using AllocationHandle = unsigned long long;
enum class LocationType : int { kDevice = 1 };
enum class AllocationType : int { kPinned = 1 };
enum class ShareableHandleType : int { kFileDescriptor = 1 };
enum class AccessFlags : int { kRead = 1, kReadWrite = 3 };
inline constexpr int kMinimumGranularity = 0;

struct MemoryLocation {
  LocationType type = LocationType::kDevice;
  int id = 0;  // the device's place in the driver's order
};

struct AllocationProperties {
  AllocationType type = AllocationType::kPinned;
  ShareableHandleType handle_types = ShareableHandleType::kFileDescriptor;
  MemoryLocation location;
  void* win32_metadata = nullptr;
  struct {
    unsigned char compression = 0;
    unsigned char gpu_direct_rdma = 0;
    unsigned short usage = 0;
    unsigned char reserved[4] = {};
  } flags;
};

struct AccessDescription {
  MemoryLocation location;
  AccessFlags flags = AccessFlags::kRead;
};

}  // namespace sortition::devices::cuda
