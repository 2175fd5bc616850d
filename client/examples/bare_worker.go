// A whole worker without the client library, in Go, with grpc-go and the messages of the contract alone.
//
//	protoc --proto_path=proto --go_out=. --go_opt=Msortition/v1/errors.proto=sortition/v1 \
//	    --go_opt=Msortition/v1/parameters.proto=sortition/v1 --go_opt=Msortition/v1/sampling.proto=sortition/v1 \
//	    sortition/v1/errors.proto sortition/v1/parameters.proto sortition/v1/sampling.proto
//	bare_worker 127.0.0.1:50051 [TARGET...]
//
// docs/without-client.md has the rules. bare_worker.py is the same in Python, and draws the same tokens.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"math/rand"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "sortition/v1"
)

const (
	vocabulary   = 1000
	messageBytes = 2 << 20          // longer steps travel in several messages
	messageRows  = 256              // likewise
	stepTimeout  = 5 * time.Second  // the server's, for a row to start
	silence      = 6 * time.Second  // a stream that owes an answer for this long is given up
	deadline     = 60 * time.Second // a token, with all tries
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
)

// sequence is a text. Any server can continue it from what is here.
type sequence struct {
	requestID            string
	seed                 uint64
	parameters           *v1.SamplingParameters
	tokens               []uint32
	promptLength         uint32
	epoch, stepID        uint64  // of the last open, and of the last answered step
	historyHash          *uint64 // nil if the server keeps no state of it
	isOpen, sendsHistory bool
	row                  []byte // logits whose token is to be drawn; nil: none
}

// batch is a message with unanswered rows, by their index.
type batch struct {
	left map[uint32]*sequence
	size int
}

// worker has one stream at a time, to one of the targets in turn.
type worker struct {
	targets                    []string
	session                    string
	sequences                  []*sequence
	conn                       *grpc.ClientConn
	stream                     grpc.ClientStream
	cancel                     context.CancelFunc
	streams, failures, batches int
	welcome                    *v1.Welcome
	window                     *v1.FlowWindow
	unanswered                 map[uint64]*batch
	isDraining                 bool
	pause                      time.Duration
}

// final is an error that another try would meet again. After any other the worker opens a stream elsewhere.
type final struct{ error }

func (w *worker) connect() error {
	if w.failures > 0 {
		pause := math.Min(float64(longestPause), float64(firstPause)*math.Pow(2, float64(w.failures-1)))
		time.Sleep(time.Duration(pause * (0.5 + rand.Float64()/2)))
	}
	w.failures++ // until a row is answered
	conn, err := grpc.Dial(w.targets[w.streams%len(w.targets)], grpc.WithInsecure(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)))
	if err != nil {
		return final{err}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer time.AfterFunc(silence, cancel).Stop()
	w.conn, w.cancel, w.isDraining, w.unanswered = conn, cancel, false, map[uint64]*batch{}
	w.streams++
	for _, s := range w.sequences {
		s.isOpen = false
	}
	description := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	if w.stream, err = conn.NewStream(ctx, description, "/sortition.v1.SamplingService/Stream"); err != nil {
		return err
	}
	hello := &v1.Hello{WorkerSession: w.session, Client: "bare-worker"}
	if err := w.send(&v1.StreamRequest{Kind: &v1.StreamRequest_Hello{Hello: hello}}); err != nil {
		return err
	}
	response, err := w.receive()
	w.welcome, w.window = response.GetWelcome(), response.GetWelcome().GetFlowWindow()
	return err
}

func (w *worker) leave() {
	w.cancel()
	w.conn.Close()
	w.conn = nil
}

func (w *worker) send(request *v1.StreamRequest) error {
	defer time.AfterFunc(silence, w.cancel).Stop()
	if err := w.stream.SendMsg(request); err != io.EOF {
		return err
	}
	return w.stream.RecvMsg(&v1.StreamResponse{}) // says why the stream has ended
}

// receive returns the next answer. Notices that come before it are seen to.
func (w *worker) receive() (*v1.StreamResponse, error) {
	defer time.AfterFunc(silence, w.cancel).Stop()
	for {
		response := &v1.StreamResponse{}
		if err := w.stream.RecvMsg(response); err != nil {
			return nil, err
		}
		switch kind := response.Kind.(type) {
		case *v1.StreamResponse_Draining:
			w.isDraining = true // what is in flight is still answered here
		case *v1.StreamResponse_FlowWindow:
			w.window = kind.FlowWindow
		case *v1.StreamResponse_Rejected:
			return nil, final{errors.New(kind.Rejected.Error.String())}
		default:
			return response, nil
		}
	}
}

// draw appends one token to each sequence.
func (w *worker) draw() error {
	end := time.Now().Add(deadline)
	for _, s := range w.sequences {
		s.row = computeLogits(len(s.tokens))
	}
	for {
		var left []*sequence
		for _, s := range w.sequences {
			if s.row != nil {
				left = append(left, s)
			}
		}
		if len(left) == 0 {
			return nil
		}
		w.pause = 0
		if err := w.attempt(left); err != nil {
			switch status.Code(err) {
			case codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented, codes.InvalidArgument,
				codes.FailedPrecondition:
				return err
			}
			if errors.As(err, &final{}) || time.Now().After(end) {
				return err
			}
			w.isDraining = true
		}
		if w.isDraining {
			w.leave()
		}
		time.Sleep(w.pause)
	}
}

func (w *worker) attempt(sequences []*sequence) error {
	if w.conn == nil {
		if err := w.connect(); err != nil {
			return err
		}
	}
	if err := w.open(sequences); err != nil {
		return err
	}
	return w.step(sequences)
}

func (w *worker) open(sequences []*sequence) error {
	asked := map[string]*sequence{}
	for _, s := range sequences {
		if s.isOpen {
			continue
		}
		s.epoch++
		asked[s.requestID] = s
		open := &v1.OpenSequence{RequestId: s.requestID, Epoch: s.epoch, LawVersion: 1, Parameters: s.parameters,
			Seed: &s.seed, VocabularySize: vocabulary}
		if s.sendsHistory {
			open.History = &v1.History{Tokens: s.tokens, PromptLength: s.promptLength}
		}
		if err := w.send(&v1.StreamRequest{Kind: &v1.StreamRequest_Open{Open: open}}); err != nil {
			return err
		}
	}
	for range asked {
		response, err := w.receive()
		if err != nil {
			return err
		}
		opened := response.GetOpened()
		s := asked[opened.RequestId]
		if opened.GetError() != nil {
			if err := w.refuse(s, opened.GetError()); err != nil {
				return err
			}
			continue
		}
		s.isOpen, s.sendsHistory = true, false
		if opened.GetState().Stateful && s.historyHash == nil {
			s.historyHash = opened.GetState().HistoryHash
		}
	}
	return nil
}

// step sends the rows in messages within the window, and awaits their answers.
func (w *worker) step(sequences []*sequence) error {
	most := math.Min(messageRows, math.Min(messageBytes, float64(w.welcome.MaxMessageBytes))/(4*vocabulary+512))
	var open []*sequence
	for i, s := range sequences {
		if s.isOpen {
			open = append(open, s)
		}
		if len(open) > 0 && (float64(len(open)+1) > most || i == len(sequences)-1) {
			if err := w.sendStep(open); err != nil {
				return err
			}
			open = nil
		}
	}
	return w.await(func() bool { return len(w.unanswered) == 0 })
}

func (w *worker) sendStep(sequences []*sequence) error {
	w.batches++
	step := &v1.Step{BatchId: uint64(w.batches), Timeout: durationpb.New(stepTimeout), Logits: &v1.LogitsTensor{
		Dtype: v1.DType_DTYPE_F32, VocabularySize: vocabulary,
		Source: &v1.TensorSource{Kind: &v1.TensorSource_Inline_{Inline: &v1.TensorSource_Inline{Payload: 0}}}}}
	var payload []byte
	left := map[uint32]*sequence{}
	for i, s := range sequences {
		step.Rows = append(step.Rows, &v1.StepRow{RequestId: s.requestID, StepId: s.stepID + 1,
			Position: uint32(len(s.tokens)), HistoryHash: s.historyHash})
		payload = append(payload, s.row...)
		left[uint32(i)] = s
	}
	request := &v1.StreamRequest{Kind: &v1.StreamRequest_Step{Step: step}, Payloads: [][]byte{payload}}
	size := proto.Size(request)
	hasRoom := func() bool {
		rows, bytes := len(sequences), size
		for _, sent := range w.unanswered {
			rows, bytes = rows+len(sent.left), bytes+sent.size
		}
		return rows <= int(w.window.UnansweredRows) && uint64(bytes) <= w.window.UnansweredBytes
	}
	if err := w.await(func() bool { return len(w.unanswered) == 0 || hasRoom() }); err != nil {
		return err
	}
	w.unanswered[step.BatchId] = &batch{left, size}
	return w.send(request)
}

func (w *worker) await(done func() bool) error {
	for !done() {
		response, err := w.receive()
		if err != nil {
			return err
		}
		if err := w.take(response.GetResults()); err != nil {
			return err
		}
	}
	return nil
}

func (w *worker) take(results *v1.StepResults) error {
	sent := w.unanswered[results.BatchId]
	if results.Error != nil {
		for index := range sent.left {
			results.Rows = append(results.Rows, &v1.RowResult{Row: index, Kind: &v1.RowResult_Error{Error: results.Error}})
		}
	}
	for _, row := range results.Rows {
		s := sent.left[row.Row]
		delete(sent.left, row.Row)
		if row.GetError() != nil {
			if err := w.refuse(s, row.GetError()); err != nil {
				return err
			}
			continue
		}
		w.failures = 0
		s.tokens = append(s.tokens, row.GetDraw().Token)
		s.stepID, s.historyHash, s.row = row.StepId, row.GetDraw().HistoryHash, nil
	}
	if len(sent.left) == 0 {
		delete(w.unanswered, results.BatchId)
	}
	return nil
}

// refuse prepares the next try of a sequence, or returns an error that ends it.
func (w *worker) refuse(s *sequence, err *v1.Error) error {
	switch err.Reason {
	case v1.ErrorReason_HISTORY_REQUIRED, v1.ErrorReason_STALE_STEP, v1.ErrorReason_STEP_CONFLICT:
		s.isOpen, s.sendsHistory = false, true
	case v1.ErrorReason_UNKNOWN_SEQUENCE, v1.ErrorReason_STEP_IN_FLIGHT:
		s.isOpen = false
	case v1.ErrorReason_DRAINING, v1.ErrorReason_DEVICE_FAILED:
		w.isDraining = true
	case v1.ErrorReason_OVERLOADED, v1.ErrorReason_CLIENT_LIMIT, v1.ErrorReason_RECEIPTS_NOT_WRITTEN,
		v1.ErrorReason_DEADLINE_PASSED: // the same again
	default:
		return final{fmt.Errorf("%s: %v", s.requestID, err)}
	}
	if pause := err.RetryAfter.AsDuration(); pause > w.pause {
		w.pause = pause
	}
	return nil
}

// close lets the server forget the sequences before their time. A close that is lost costs it memory alone.
func (w *worker) close() error {
	if w.conn == nil {
		return nil
	}
	defer w.leave()
	for _, s := range w.sequences {
		request := &v1.CloseSequence{RequestId: s.requestID}
		if err := w.send(&v1.StreamRequest{Kind: &v1.StreamRequest_Close{Close: request}}); err != nil {
			return err
		}
		if _, err := w.receive(); err != nil {
			return err
		}
	}
	return nil
}

// computeLogits stands for the model: the row of logits after `position` tokens, as little-endian f32.
func computeLogits(position int) []byte {
	row := make([]byte, 4*vocabulary)
	for token := 0; token < vocabulary; token++ {
		logit := float32(float64(token*(position+7)%1009) / 100)
		binary.LittleEndian.PutUint32(row[4*token:], math.Float32bits(logit))
	}
	return row
}

func main() {
	rand.Seed(time.Now().UnixNano())
	w := &worker{targets: os.Args[1:], session: fmt.Sprintf("bare-%016x", rand.Uint64())}
	for number, parameters := range []*v1.SamplingParameters{
		{}, {RepetitionPenalty: proto.Float32(1.1)}, {FrequencyPenalty: proto.Float32(0.5)}} {
		parameters.Temperature, parameters.TopP = proto.Float32(0.8), proto.Float32(0.95)
		w.sequences = append(w.sequences, &sequence{requestID: fmt.Sprintf("request-%d", number+1),
			seed: uint64(42 + number), parameters: parameters, tokens: []uint32{1, 543, 386}, promptLength: 3})
	}
	for i := 0; i < 20; i++ {
		if err := w.draw(); err != nil {
			log.Fatal(err)
		}
		for _, s := range w.sequences {
			fmt.Print(s.tokens[len(s.tokens)-1], " ")
		}
		fmt.Println()
	}
	if err := w.close(); err != nil {
		log.Fatal(err)
	}
}
