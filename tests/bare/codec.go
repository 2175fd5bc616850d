// Serves where grpc-go is older than the messages, as on Debian 12: its own codec does not know their oneofs.
package main

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/proto"
)

type codec struct{}

func (codec) Marshal(message interface{}) ([]byte, error) {
	return proto.Marshal(message.(proto.Message))
}

func (codec) Unmarshal(bytes []byte, message interface{}) error {
	return proto.Unmarshal(bytes, message.(proto.Message))
}

func (codec) Name() string { return "proto" }

func init() { encoding.RegisterCodec(codec{}) }
