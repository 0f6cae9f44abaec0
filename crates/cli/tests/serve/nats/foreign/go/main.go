// Checks of nats.go against a server; the last line of output confirms that all of them succeeded.
//
// With "restart" it publishes until it has been disconnected and has reconnected, and prints a line for each event; the test
// kills the server meanwhile.
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// Time after which a wait is a failure.
const waitTimeout = 50 * time.Second

// Time to wait for an acknowledgement before the message is sent again.
const attempt = 2 * time.Second

// Messages published after the client has reconnected.
const afterwards = 100

func demand(holds bool, what string, details ...interface{}) {
	if !holds {
		fmt.Println(append([]interface{}{"NOT:", what}, details...)...)
		os.Exit(1)
	}
}

func must[T any](value T, err error) T {
	demand(err == nil, "it works", err)
	return value
}

func plain(client *nats.Conn) {
	got := make(chan *nats.Msg, 10)
	must(client.ChanSubscribe("a.*", got))
	message := nats.NewMsg("a.b")
	message.Header.Set("X", "1")
	message.Data = []byte("hello")
	demand(client.PublishMsg(message) == nil, "a message with headers is published")
	demand(client.Publish("a.c.d", []byte("not for us")) == nil, "another one")
	demand(client.Publish("a.big", make([]byte, 900_000)) == nil, "a large one")
	demand(client.FlushTimeout(waitTimeout) == nil, "they are flushed")
	first, second := <-got, <-got
	demand(first.Subject == "a.b" && string(first.Data) == "hello" && first.Header.Get("X") == "1", "hello", first)
	demand(second.Subject == "a.big" && len(second.Data) == 900_000, "a large one comes", second.Subject)
	demand(len(got) == 0, "no more comes")
}

func requests(client *nats.Conn) {
	var counts [2]int64
	for number := range counts {
		count := &counts[number]
		must(client.QueueSubscribe("service", "workers", func(message *nats.Msg) {
			atomic.AddInt64(count, 1)
			_ = message.Respond(append([]byte("re:"), message.Data...))
		}))
	}
	for number := 0; number < 30; number++ {
		answer := must(client.Request("service", []byte(strconv.Itoa(number)), waitTimeout))
		demand(string(answer.Data) == "re:"+strconv.Itoa(number), "it is answered", string(answer.Data))
	}
	demand(counts[0]+counts[1] == 30 && counts[0] > 0 && counts[1] > 0, "the queue is shared", counts)
	_, err := client.Request("nobody", nil, waitTimeout)
	demand(errors.Is(err, nats.ErrNoResponders), "nobody is there", err)
}

func streams(client *nats.Conn) {
	stream := must(client.JetStream(nats.MaxWait(waitTimeout)))
	for number := uint64(1); number <= 100; number++ {
		ack := must(stream.Publish("events.n", []byte(strconv.FormatUint(number, 10))))
		demand(ack.Stream == "events" && ack.Sequence == number && !ack.Duplicate, "it is stored", ack)
	}
	once := must(stream.Publish("events.n", []byte("101"), nats.MsgId("q")))
	again := must(stream.Publish("events.n", []byte("101"), nats.MsgId("q")))
	demand(once.Sequence == 101 && !once.Duplicate && again.Sequence == 101 && again.Duplicate, "stored once", again)
	_, err := stream.Publish("events.n", nil, nats.ExpectLastSequence(5))
	var refusal *nats.APIError
	demand(errors.As(err, &refusal) && refusal.ErrorCode == 10071, "the sequence is wrong", err)
	demand(must(stream.Publish("memory.n", []byte("m"))).Sequence == 1, "memory keeps it")
	var answers []nats.PubAckFuture
	for number := 0; number < 500; number++ {
		answers = append(answers, must(stream.PublishAsync("events.many", []byte(strconv.Itoa(number)))))
	}
	for number, answer := range answers {
		select {
		case ack := <-answer.Ok():
			demand(ack.Sequence == uint64(102+number), "they are stored in order", ack)
		case err := <-answer.Err():
			demand(false, "it is stored", err)
		}
	}
	state := must(stream.StreamInfo("events")).State
	demand(state.Msgs == 601 && state.LastSeq == 601, "the stream is described", state)
	demand(must(stream.StreamNameBySubject("events.x")) == "events", "it is found")
	demand(must(stream.AccountInfo()).Streams == 2, "there are two")
	demand(string(must(stream.GetMsg("events", 7)).Data) == "7", "one of them is got")
	demand(string(must(stream.GetMsg("events", 8, nats.DirectGet())).Data) == "8", "directly, too")
	_, err = stream.GetMsg("events", 9999)
	demand(errors.Is(err, nats.ErrMsgNotFound), "it is not there", err)
	_, err = stream.StreamInfo("nothing")
	demand(errors.Is(err, nats.ErrStreamNotFound), "there is none", err)
	_, err = stream.AddConsumer("events", &nats.ConsumerConfig{Durable: "d", AckPolicy: nats.AckExplicitPolicy})
	demand(errors.As(err, &refusal), "a durable consumer is refused with words", err)
}

func replay(client *nats.Conn) {
	stream := must(client.JetStream(nats.MaxWait(waitTimeout)))
	ordered := must(stream.SubscribeSync("events.n", nats.OrderedConsumer()))
	for number := uint64(1); number <= 101; number++ {
		message := must(ordered.NextMsg(waitTimeout))
		metadata := must(message.Metadata())
		demand(string(message.Data) == strconv.FormatUint(number, 10), "it is replayed", string(message.Data))
		demand(metadata.Sequence.Stream == number && metadata.Timestamp.Year() >= 2024, "at its metadata", metadata)
	}
	must(stream.Publish("events.n", []byte("new")))
	demand(string(must(ordered.NextMsg(waitTimeout)).Data) == "new", "what is new follows")
	later := must(stream.SubscribeSync("events.>", nats.OrderedConsumer(), nats.StartSequence(600)))
	for sequence := uint64(600); sequence <= 602; sequence++ {
		metadata := must(must(later.NextMsg(waitTimeout)).Metadata())
		demand(metadata.Sequence.Stream == sequence, "from its sequence on", metadata)
	}
	memory := must(stream.SubscribeSync("memory.>", nats.OrderedConsumer()))
	demand(string(must(memory.NextMsg(waitTimeout)).Data) == "m", "memory is replayed")
}

// Serializes the output of several goroutines.
var outputLock sync.Mutex

func printLine(what ...interface{}) {
	outputLock.Lock()
	defer outputLock.Unlock()
	fmt.Println(what...)
}

func restart(address string) {
	back := make(chan struct{})
	client := must(nats.Connect(
		address,
		nats.MaxReconnects(-1),
		nats.ReconnectWait(50*time.Millisecond),
		nats.DisconnectErrHandler(func(_ *nats.Conn, _ error) { printLine("disconnected") }),
		nats.ReconnectHandler(func(_ *nats.Conn) { printLine("reconnected"); close(back) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { printLine("error", err) }),
	))
	must(client.Subscribe("plain", func(message *nats.Msg) { printLine("received", string(message.Data)) }))
	stream := must(client.JetStream(nats.MaxWait(attempt)))
	var delivered int64
	follow := func(message *nats.Msg) {
		metadata := must(message.Metadata())
		atomic.AddInt64(&delivered, 1)
		printLine("delivered", string(message.Data), metadata.Sequence.Stream)
	}
	must(stream.Subscribe("events.n", follow, nats.OrderedConsumer(), nats.IdleHeartbeat(time.Second)))

	number, left := int64(0), afterwards
	for left > 0 {
		number++
		text := strconv.FormatInt(number, 10)
		for {
			ack, err := stream.Publish("events.n", []byte(text), nats.MsgId(text))
			if err == nil {
				printLine("acknowledged", text, ack.Sequence)
				break
			}
			printLine("failed", text, err)
		}
		select {
		case <-back:
			left--
		default:
		}
	}
	demand(client.Publish("plain", []byte("afterwards")) == nil, "a plain message is published")
	demand(client.FlushTimeout(waitTimeout) == nil, "it is flushed")
	for end := time.Now().Add(waitTimeout); atomic.LoadInt64(&delivered) < number; time.Sleep(5 * time.Millisecond) {
		demand(time.Now().Before(end), "all of them are delivered", delivered, number)
	}
	// The remaining output of its handlers comes first.
	demand(client.Drain() == nil, "it drains")
	for !client.IsClosed() {
		time.Sleep(5 * time.Millisecond)
	}
	fmt.Println("all checks passed")
}

func main() {
	if os.Args[2] == "restart" {
		restart(os.Args[1])
		return
	}
	if os.Args[2] == "conformance" {
		conformance(os.Args[1])
		return
	}
	if os.Args[2] == "idle" {
		idle(os.Args[1], time.Duration(must(strconv.Atoi(os.Args[3])))*time.Second)
		return
	}
	client := must(nats.Connect(os.Args[1], nats.Timeout(waitTimeout), nats.NoReconnect(),
		nats.ClosedHandler(func(client *nats.Conn) { printLine("closed", client.LastError()) })))
	for _, step := range []func(*nats.Conn){plain, requests, streams, replay} {
		step(client)
	}
	demand(client.Drain() == nil, "it drains")
	fmt.Println("all checks passed")
}
