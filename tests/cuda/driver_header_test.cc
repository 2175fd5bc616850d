// Our declarations of the driver's interface against CUDA's own.
#include <cuda.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <type_traits>

#include "devices/cuda/api.h"

namespace sortition::devices::cuda::driver_header_test {
namespace {

// A call's binary interface: the number of its arguments, and the size of each.
template <typename R, typename... Arguments>
constexpr std::array<size_t, sizeof...(Arguments)> Sizes(R (*)(Arguments...)) {
  return {sizeof(Arguments)...};
}

#define SORTITION_CUDA_FUNCTION(name, symbol, ...) \
  static_assert(Sizes(static_cast<Api::name##Function*>(nullptr)) == Sizes(static_cast<decltype(&symbol)>(nullptr)));
#include "devices/cuda/functions.inc"
#undef SORTITION_CUDA_FUNCTION

TEST(CudaDriver, DeclarationsEqualCudaHeader) {
  EXPECT_EQ(int(Result::kOutOfMemory), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(int(Result::kDeviceUnavailable), CUDA_ERROR_DEVICE_UNAVAILABLE);
  EXPECT_EQ(int(Result::kNoDevice), CUDA_ERROR_NO_DEVICE);
  EXPECT_EQ(int(Result::kInvalidImage), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(int(Result::kNoBinaryForGpu), CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(int(Result::kEccUncorrectable), CUDA_ERROR_ECC_UNCORRECTABLE);
  EXPECT_EQ(int(Result::kNvlinkUncorrectable), CUDA_ERROR_NVLINK_UNCORRECTABLE);
  EXPECT_EQ(int(Result::kUnsupportedPtxVersion), CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
  EXPECT_EQ(int(Result::kIllegalAddress), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(int(Result::kLaunchTimeout), CUDA_ERROR_LAUNCH_TIMEOUT);
  EXPECT_EQ(int(Result::kContextIsDestroyed), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(int(Result::kAssert), CUDA_ERROR_ASSERT);
  EXPECT_EQ(int(Result::kHardwareStackError), CUDA_ERROR_HARDWARE_STACK_ERROR);
  EXPECT_EQ(int(Result::kIllegalInstruction), CUDA_ERROR_ILLEGAL_INSTRUCTION);
  EXPECT_EQ(int(Result::kMisalignedAddress), CUDA_ERROR_MISALIGNED_ADDRESS);
  EXPECT_EQ(int(Result::kInvalidAddressSpace), CUDA_ERROR_INVALID_ADDRESS_SPACE);
  EXPECT_EQ(int(Result::kInvalidPc), CUDA_ERROR_INVALID_PC);
  EXPECT_EQ(int(Result::kLaunchFailed), CUDA_ERROR_LAUNCH_FAILED);
#if CUDA_VERSION >= 13000  // the headers of earlier ones lack some
  EXPECT_EQ(int(Result::kContained), CUDA_ERROR_CONTAINED);
  EXPECT_EQ(int(Result::kTensorMemoryLeak), CUDA_ERROR_TENSOR_MEMORY_LEAK);
  EXPECT_EQ(int(Result::kExternalDevice), CUDA_ERROR_EXTERNAL_DEVICE);
#endif
  EXPECT_EQ(int(Result::kNotSupported), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(int(Result::kSystemNotReady), CUDA_ERROR_SYSTEM_NOT_READY);
  EXPECT_EQ(int(Result::kNotReady), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(int(Result::kSystemDriverMismatch), CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
  EXPECT_EQ(int(Result::kStreamCaptureUnsupported), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(int(Result::kStreamCaptureInvalidated), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(int(DeviceAttribute::kMemoryPools), CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
  EXPECT_EQ(int(DeviceAttribute::kMultiprocessors), CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  EXPECT_EQ(int(DeviceAttribute::kComputeCapabilityMajor), CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  EXPECT_EQ(int(DeviceAttribute::kComputeCapabilityMinor), CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  EXPECT_EQ(int(DeviceAttribute::kVirtualMemoryManagement), CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  EXPECT_EQ(int(DeviceAttribute::kFileDescriptorHandles),
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  EXPECT_EQ(int(PointerAttribute::kDeviceOrdinal), CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
  EXPECT_EQ(int(PointerAttribute::kMemoryType), CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
  EXPECT_EQ(int(CaptureMode::kGlobal), CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(int(CaptureMode::kRelaxed), CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(kStreamLegacy, CU_STREAM_LEGACY);
  EXPECT_EQ(kStreamNonBlocking, unsigned(CU_STREAM_NON_BLOCKING));
  EXPECT_EQ(kWaitUntilNotBefore, unsigned(CU_STREAM_WAIT_VALUE_GEQ));
  EXPECT_EQ(kHostRegisterDeviceMap, unsigned(CU_MEMHOSTREGISTER_DEVICEMAP));
  EXPECT_EQ(kEventBlockingSync, unsigned(CU_EVENT_BLOCKING_SYNC));
  EXPECT_EQ(kFunctionRegisters, int(CU_FUNC_ATTRIBUTE_NUM_REGS));
  EXPECT_EQ(int(MemoryType::kHost), CU_MEMORYTYPE_HOST);
  EXPECT_EQ(int(MemoryType::kDevice), CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(int(LocationType::kDevice), CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(int(AllocationType::kPinned), CU_MEM_ALLOCATION_TYPE_PINNED);
  EXPECT_EQ(int(ShareableHandleType::kFileDescriptor), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  EXPECT_EQ(int(AccessFlags::kRead), CU_MEM_ACCESS_FLAGS_PROT_READ);
  EXPECT_EQ(int(AccessFlags::kReadWrite), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_EQ(kMinimumGranularity, int(CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}

// The fields' places.
static_assert(sizeof(Copy2D) == sizeof(CUDA_MEMCPY2D));
static_assert(offsetof(CopySide, y) == offsetof(CUDA_MEMCPY2D, srcY));
static_assert(offsetof(CopySide, type) == offsetof(CUDA_MEMCPY2D, srcMemoryType));
static_assert(offsetof(CopySide, host) == offsetof(CUDA_MEMCPY2D, srcHost));
static_assert(offsetof(CopySide, device) == offsetof(CUDA_MEMCPY2D, srcDevice));
static_assert(offsetof(CopySide, array) == offsetof(CUDA_MEMCPY2D, srcArray));
static_assert(offsetof(CopySide, pitch) == offsetof(CUDA_MEMCPY2D, srcPitch));
static_assert(offsetof(Copy2D, to) == offsetof(CUDA_MEMCPY2D, dstXInBytes));
static_assert(offsetof(Copy2D, width_bytes) == offsetof(CUDA_MEMCPY2D, WidthInBytes));
static_assert(offsetof(Copy2D, height) == offsetof(CUDA_MEMCPY2D, Height));
static_assert(sizeof(Uuid) == sizeof(CUuuid));
static_assert(std::is_same_v<AllocationHandle, CUmemGenericAllocationHandle>);
static_assert(sizeof(MemoryLocation) == sizeof(CUmemLocation));
static_assert(offsetof(MemoryLocation, id) == offsetof(CUmemLocation, id));
static_assert(sizeof(AllocationProperties) == sizeof(CUmemAllocationProp));
static_assert(offsetof(AllocationProperties, handle_types) == offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(AllocationProperties, location) == offsetof(CUmemAllocationProp, location));
static_assert(offsetof(AllocationProperties, win32_metadata) == offsetof(CUmemAllocationProp, win32HandleMetaData));
static_assert(offsetof(AllocationProperties, flags) == offsetof(CUmemAllocationProp, allocFlags));
static_assert(sizeof(AllocationProperties::flags) == sizeof(CUmemAllocationProp::allocFlags));
static_assert(sizeof(AccessDescription) == sizeof(CUmemAccessDesc));
static_assert(offsetof(AccessDescription, flags) == offsetof(CUmemAccessDesc, flags));

}  // namespace
}  // namespace sortition::devices::cuda::driver_header_test
