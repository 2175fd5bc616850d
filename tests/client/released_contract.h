// The messages of a released contract, built and read by its descriptors in proto/released.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/dynamic_message.h>

#include <fstream>
#include <memory>
#include <string>

#include "kernels/check.h"

namespace sortition::testing {

class ReleasedContract {
 public:
  // Reads a FileDescriptorSet.
  explicit ReleasedContract(const std::string& file) : factory_(&pool_) {
    google::protobuf::FileDescriptorSet set;
    std::ifstream in(file, std::ios::binary);
    SORTITION_CHECK(set.ParseFromIstream(&in));
    for (const google::protobuf::FileDescriptorProto& one : set.file()) {
      SORTITION_CHECK(pool_.BuildFile(one) != nullptr);
    }
  }
  // Returns an empty message of the package sortition.v1. It must not outlive the contract.
  std::unique_ptr<google::protobuf::Message> New(const std::string& name) {
    const auto* const descriptor = pool_.FindMessageTypeByName("sortition.v1." + name);
    SORTITION_CHECK(descriptor != nullptr);
    return std::unique_ptr<google::protobuf::Message>(factory_.GetPrototype(descriptor)->New());
  }

 private:
  google::protobuf::DescriptorPool pool_;
  google::protobuf::DynamicMessageFactory factory_;
};

}  // namespace sortition::testing
