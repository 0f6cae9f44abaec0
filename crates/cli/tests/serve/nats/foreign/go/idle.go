// The delay of the first message after a silence.
package main

import (
	"context"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const idleSubject = "events.go.idle"

// A message that an ordered consumer delivered.
type arrival struct {
	kind, consumer string
	delay          time.Duration
}

// Prints `KIND MICROSECONDS kept|reset` for each kind of ordered consumer: the delay of the first message after a silence, and
// whether the consumer is the same.
func idle(address string, silence time.Duration) {
	longest := silence + caseTimeout
	time.AfterFunc(longest, func() { os.Exit(1) })
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	defer cancel()
	client := must(connectAs(address, "root", "all"))
	w := &world{address, client, must(jetstream.New(client)), ctx}
	begin, arrivals := time.Now(), make(chan arrival, 2)
	arrived := func(kind, consumer string, data []byte) {
		sent := time.Duration(must(strconv.ParseInt(string(data), 10, 64)))
		arrivals <- arrival{kind, consumer, time.Since(begin) - sent}
	}
	publish := func() {
		stamp := strconv.FormatInt(int64(time.Since(begin)), 10)
		demand(client.Publish(idleSubject, []byte(stamp)) == nil, "it is published")
	}
	must(must(client.JetStream()).Subscribe(idleSubject, func(message *nats.Msg) {
		arrived("push", must(message.Metadata()).Consumer, message.Data)
	}, nats.OrderedConsumer()))
	must(w.ordered("events", idleSubject).Consume(func(message jetstream.Msg) {
		arrived("pull", must(message.Metadata()).Consumer, message.Data())
	}))
	publish()
	before := map[string]string{}
	for len(before) < 2 {
		one := <-arrivals
		before[one.kind] = one.consumer
	}
	printLine("waiting")
	time.Sleep(silence)
	publish()
	for range before {
		one, verdict := <-arrivals, "reset"
		if one.consumer == before[one.kind] {
			verdict = "kept"
		}
		printLine(one.kind, one.delay.Microseconds(), verdict)
	}
}
