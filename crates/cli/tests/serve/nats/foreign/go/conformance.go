// Every call of nats.go that a server without durable consumers can answer: one line `ok NAME` or `FAIL NAME reason` for each case.
//
// Runs against any server that has the streams `events` (events.>) and `memory` (memory.>), and the users `root` (password `all`)
// and `sensor` (password `s`, publishes to sensors.>, subscribes to _INBOX.>).
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Maximum time of a case.
const caseTimeout = 20 * time.Second

// A case, which panics with the reason of a failure.
type testCase struct {
	name string
	run  func(*world)
}

type world struct {
	address string
	client  *nats.Conn
	streams jetstream.JetStream
	context context.Context
}

func check(holds bool, details ...interface{}) {
	if !holds {
		panic(fmt.Sprint(details...))
	}
}

func same[T comparable](got, expected T) {
	check(got == expected, fmt.Sprintf("%v, expected %v", got, expected))
}

func fine[T any](value T, err error) T {
	check(err == nil, "error: ", err)
	return value
}

func failsWith(err, expected error) {
	check(errors.Is(err, expected), fmt.Sprintf("%v, expected %v", err, expected))
}

func eventually(condition func() bool) {
	for end := time.Now().Add(waitTimeout); !condition(); time.Sleep(10 * time.Millisecond) {
		check(time.Now().Before(end), "it does not happen")
	}
}

var subjects int64

func newSubject() string {
	return fmt.Sprintf("core.go%d", atomic.AddInt64(&subjects, 1))
}

func connectAs(address, user, password string, options ...nats.Option) (*nats.Conn, error) {
	options = append([]nats.Option{nats.UserInfo(user, password), nats.Timeout(waitTimeout)}, options...)
	return nats.Connect(address, options...)
}

func (w *world) other(options ...nats.Option) *nats.Conn {
	return fine(connectAs(w.address, "root", "all", options...))
}

func next(subscription *nats.Subscription) *nats.Msg {
	return fine(subscription.NextMsg(caseTimeout))
}

// Errors reported by a client.
type reported struct {
	mutex sync.Mutex
	texts []string
}

func (r *reported) add(err error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.texts = append(r.texts, fmt.Sprint(err))
}

func (r *reported) all() []string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return append([]string{}, r.texts...)
}

// Features of the core protocol.
var coreCases = []testCase{
	{"connect_describes_the_server", func(w *world) {
		same(w.client.MaxPayload(), 1048576)
		check(w.client.HeadersSupported() && strings.HasPrefix(w.client.ConnectedServerVersion(), "2."), "version")
		check(w.client.ConnectedServerId() != "" && w.client.ConnectedServerName() != "", "names")
		same(fine(w.client.GetClientIP()).String(), "127.0.0.1")
		check(fine(w.client.GetClientID()) > 0, "an id")
		check(w.client.AuthRequired() && !w.client.TLSRequired(), "authentication")
	}},
	{"connect_options", func(w *world) {
		verbose := func(o *nats.Options) error { o.Verbose = true; return nil }
		pedantic := func(o *nats.Options) error { o.Pedantic = true; return nil }
		for _, option := range []nats.Option{verbose, pedantic, nats.NoEcho(), nats.Name("a name"), nats.UseOldRequestStyle()} {
			client, subject := w.other(option), newSubject()
			subscription := fine(w.client.SubscribeSync(subject))
			check(w.client.Flush() == nil, "flush")
			check(client.Publish(subject, []byte("x")) == nil && client.Flush() == nil, "publish")
			same(string(next(subscription).Data), "x")
			client.Close()
		}
	}},
	{"wrong_password", func(w *world) {
		_, err := connectAs(w.address, "root", "wrong")
		failsWith(err, nats.ErrAuthorization)
	}},
	{"wildcards", func(w *world) {
		base := newSubject()
		one, rest := fine(w.client.SubscribeSync(base+".*.c")), fine(w.client.SubscribeSync(base+".>"))
		for _, subject := range []string{"a.c", "b.c", "a.d", "a.c.e"} {
			check(w.client.Publish(base+"."+subject, []byte(subject)) == nil, "publish")
		}
		for _, subject := range []string{"a.c", "b.c"} {
			same(string(next(one).Data), subject)
		}
		for _, subject := range []string{"a.c", "b.c", "a.d", "a.c.e"} {
			same(string(next(rest).Data), subject)
		}
	}},
	{"headers_and_reply", func(w *world) {
		subject := newSubject()
		subscription := fine(w.client.SubscribeSync(subject))
		message := nats.NewMsg(subject)
		message.Header.Add("A", "1")
		message.Header.Add("A", "2")
		message.Header.Set("b-C", "two words")
		message.Reply = "back.to"
		check(w.client.PublishMsg(message) == nil, "publish")
		got := next(subscription)
		same(strings.Join(got.Header["A"], ",")+got.Header["b-C"][0]+got.Reply, "1,2two wordsback.to")
		check(w.client.PublishRequest(subject, "reply.to", []byte{0, 255, 13, 10}) == nil, "publish")
		got = next(subscription)
		check(got.Reply == "reply.to" && bytes.Equal(got.Data, []byte{0, 255, 13, 10}), got)
		check(w.client.Publish(subject, nil) == nil, "publish")
		same(len(next(subscription).Data), 0)
	}},
	{"queue_groups", func(w *world) {
		subject, counts := newSubject(), [3]int64{}
		for number := range counts {
			count := &counts[number]
			queue := ""
			if number < 2 {
				queue = "q"
			}
			if queue == "" {
				fine(w.client.Subscribe(subject, func(*nats.Msg) { atomic.AddInt64(count, 1) }))
			} else {
				fine(w.client.QueueSubscribe(subject, queue, func(*nats.Msg) { atomic.AddInt64(count, 1) }))
			}
		}
		for number := 0; number < 100; number++ {
			check(w.client.Publish(subject, nil) == nil, "publish")
		}
		of := func(number int) int64 { return atomic.LoadInt64(&counts[number]) }
		eventually(func() bool { return of(0)+of(1)+of(2) == 200 })
		check(of(0) > 0 && of(1) > 0 && of(2) == 100, counts)
	}},
	{"request_reply", func(w *world) {
		subject := newSubject()
		fine(w.client.Subscribe(subject, func(message *nats.Msg) {
			_ = message.Respond(append([]byte("re:"), message.Data...))
		}))
		for number := 0; number < 50; number++ {
			text := strconv.Itoa(number)
			same(string(fine(w.client.Request(subject, []byte(text), waitTimeout)).Data), "re:"+text)
		}
		same(string(fine(w.client.RequestWithContext(w.context, subject, []byte("c"))).Data), "re:c")
		message := nats.NewMsg(subject)
		message.Header.Set("A", "1")
		same(string(fine(w.client.RequestMsg(message, waitTimeout)).Data), "re:")
	}},
	{"request_without_an_answer", func(w *world) {
		subject := newSubject()
		fine(w.client.SubscribeSync(subject))
		_, err := w.client.Request(subject, nil, 100*time.Millisecond)
		failsWith(err, nats.ErrTimeout)
	}},
	{"no_responders", func(w *world) {
		_, err := w.client.Request(newSubject(), nil, waitTimeout)
		failsWith(err, nats.ErrNoResponders)
	}},
	{"unsubscribe", func(w *world) {
		subject := newSubject()
		ended, goesOn := fine(w.client.SubscribeSync(subject)), fine(w.client.SubscribeSync(subject))
		check(ended.Unsubscribe() == nil && w.client.Publish(subject, []byte("x")) == nil, "unsubscribe")
		same(string(next(goesOn).Data), "x")
		check(!ended.IsValid(), "it is valid")
	}},
	{"unsubscribe_after_a_number_of_messages", func(w *world) {
		subject := newSubject()
		limited, goesOn := fine(w.client.SubscribeSync(subject)), fine(w.client.SubscribeSync(subject))
		check(limited.AutoUnsubscribe(3) == nil, "unsubscribe")
		for number := 0; number < 6; number++ {
			check(w.client.Publish(subject, []byte(strconv.Itoa(number))) == nil, "publish")
		}
		for number := 0; number < 6; number++ {
			next(goesOn)
		}
		for number := 0; number < 3; number++ {
			same(string(next(limited).Data), strconv.Itoa(number))
		}
		_, err := limited.NextMsg(100 * time.Millisecond)
		failsWith(err, nats.ErrMaxMessages)
	}},
	{"drain_of_a_subscription", func(w *world) {
		subject, count := newSubject(), int64(0)
		subscription := fine(w.client.Subscribe(subject, func(*nats.Msg) { atomic.AddInt64(&count, 1) }))
		for number := 0; number < 50; number++ {
			check(w.client.Publish(subject, nil) == nil, "publish")
		}
		check(subscription.Drain() == nil, "drain")
		eventually(func() bool { return atomic.LoadInt64(&count) == 50 && !subscription.IsValid() })
	}},
	{"drain_of_a_connection", func(w *world) {
		client, subject := w.other(), newSubject()
		subscription := fine(w.client.SubscribeSync(subject))
		check(w.client.Flush() == nil, "flush")
		for number := 0; number < 50; number++ {
			check(client.Publish(subject, []byte(strconv.Itoa(number))) == nil, "publish")
		}
		check(client.Drain() == nil, "drain")
		for number := 0; number < 50; number++ {
			same(string(next(subscription).Data), strconv.Itoa(number))
		}
		eventually(client.IsClosed)
		failsWith(client.Publish(subject, nil), nats.ErrConnectionClosed)
	}},
	{"flush_and_rtt", func(w *world) {
		check(w.client.Flush() == nil && w.client.FlushTimeout(waitTimeout) == nil, "flush")
		check(w.client.FlushWithContext(w.context) == nil, "flush")
		check(fine(w.client.RTT()) > 0, "no time")
	}},
	{"a_message_of_max_payload", func(w *world) {
		subject := newSubject()
		subscription := fine(w.client.SubscribeSync(subject))
		check(w.client.Publish(subject, make([]byte, w.client.MaxPayload())) == nil, "publish")
		same(int64(len(next(subscription).Data)), w.client.MaxPayload())
	}},
	{"a_message_over_max_payload", func(w *world) {
		failsWith(w.client.Publish(newSubject(), make([]byte, w.client.MaxPayload()+1)), nats.ErrMaxPayload)
	}},
	{"no_echo", func(w *world) {
		client, subject := w.other(nats.NoEcho()), newSubject()
		own, foreign := fine(client.SubscribeSync(subject)), fine(w.client.SubscribeSync(subject))
		check(client.Flush() == nil && w.client.Flush() == nil, "flush")
		check(client.Publish(subject, []byte("own")) == nil, "publish")
		same(string(next(foreign).Data), "own")
		check(w.client.Publish(subject, []byte("foreign")) == nil, "publish")
		same(string(next(own).Data), "foreign")
		client.Close()
	}},
	{"invalid_publish_subjects_leave_the_connection_open", func(w *world) {
		var errs reported
		note := nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { errs.add(err) })
		client, subject := w.other(nats.NoReconnect(), note), newSubject()
		subscription := fine(client.SubscribeSync(subject))
		deep := strings.Repeat("a.", 64) + "b"
		for _, invalid := range []string{"a..b", ".a", "a.", "a.*", "a.>", "*", ">", strings.Repeat("a", 1200), deep} {
			check(client.Publish(invalid, []byte("x")) == nil, "publish to ", invalid)
		}
		check(client.Publish(subject, []byte("still")) == nil, "publish")
		same(string(next(subscription).Data), "still")
		check(client.IsConnected() && client.LastError() == nil && len(errs.all()) == 0, client.LastError(), errs.all())
		client.Close()
	}},
	{"permissions", func(w *world) {
		var errs reported
		note := nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { errs.add(err) })
		client := fine(connectAs(w.address, "sensor", "s", note))
		subject, inbox := "sensors."+newSubject(), nats.NewInbox()
		subscription, watched := fine(client.SubscribeSync(inbox)), fine(w.client.SubscribeSync(subject))
		check(w.client.Flush() == nil, "flush")
		check(client.Publish("orders.a", nil) == nil, "publish")
		fine(client.SubscribeSync("orders.b"))
		check(client.Flush() == nil, "flush")
		eventually(func() bool { return len(errs.all()) >= 2 })
		messages := strings.ToLower(strings.Join(errs.all(), " "))
		check(strings.Contains(messages, "permissions violation for publish to \"orders.a\""), messages)
		check(strings.Contains(messages, "permissions violation for subscription to \"orders.b\""), messages)
		check(client.Publish(subject, []byte("allowed")) == nil, "publish")
		same(string(next(watched).Data), "allowed")
		check(w.client.Publish(inbox, []byte("y")) == nil, "publish")
		same(string(next(subscription).Data), "y")
		client.Close()
	}},
	{"subscriptions_in_channels_and_contexts", func(w *world) {
		subject, channel := newSubject(), make(chan *nats.Msg, 10)
		subscription := fine(w.client.ChanSubscribe(subject, channel))
		queued := fine(w.client.ChanQueueSubscribe(subject, "q", channel))
		synced := fine(w.client.QueueSubscribeSync(subject, "s"))
		check(w.client.Publish(subject, []byte("x")) == nil, "publish")
		same(string(fine(synced.NextMsgWithContext(w.context)).Data), "x")
		same(string((<-channel).Data)+string((<-channel).Data), "xx")
		check(subscription.Unsubscribe() == nil && queued.Unsubscribe() == nil, "unsubscribe")
	}},
	{"events_of_a_connection", func(w *world) {
		closed := make(chan bool, 1)
		client := w.other(nats.ClosedHandler(func(*nats.Conn) { closed <- true }), nats.PingInterval(50*time.Millisecond))
		same(client.Status(), nats.CONNECTED)
		fine(client.SubscribeSync(newSubject()))
		check(client.Flush() == nil && client.Stats().Reconnects == 0 && client.NumSubscriptions() == 1, "statistics")
		time.Sleep(300 * time.Millisecond)
		check(client.IsConnected(), "it answers PINGs")
		client.Close()
		<-closed
	}},
}

// Runs a case, and abandons it after the timeout.
func runCase(address string, one testCase) string {
	outcome := make(chan string, 1)
	go func() {
		defer func() {
			if reason := recover(); reason != nil {
				outcome <- strings.ReplaceAll(fmt.Sprintf("FAIL %s %v", one.name, reason), "\n", " ")
			}
		}()
		client := fine(connectAs(address, "root", "all"))
		defer client.Close()
		ctx, cancel := context.WithTimeout(context.Background(), caseTimeout)
		defer cancel()
		one.run(&world{address, client, fine(jetstream.New(client)), ctx})
		outcome <- "ok " + one.name
	}()
	select {
	case line := <-outcome:
		return line
	case <-time.After(caseTimeout):
		return "FAIL " + one.name + " it does not end"
	}
}

func conformance(address string) {
	for _, cases := range [][]testCase{coreCases, streamCases, refusalCases} {
		for _, one := range cases {
			printLine(runCase(address, one))
		}
	}
	printLine("done")
}
