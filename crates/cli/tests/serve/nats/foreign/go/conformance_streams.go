// Cases of streams and their consumers, and of missing objects.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Features of streams.
var streamCases = []testCase{
	{"publish", func(w *world) {
		first := fine(w.streams.Publish(w.context, "events.go.a", []byte("1")))
		second := fine(w.streams.Publish(w.context, "events.go.a", []byte("2"), jetstream.WithExpectStream("events")))
		check(first.Stream == "events" && second.Sequence == first.Sequence+1 && !second.Duplicate, second)
		same(fine(w.streams.Publish(w.context, "memory.go", []byte("m"))).Stream, "memory")
		_, err := w.streams.Publish(w.context, "events.go.a", nil, jetstream.WithExpectStream("memory"))
		hasCode(err, 10060)
	}},
	{"publish_async", func(w *world) {
		var answers []jetstream.PubAckFuture
		for number := 0; number < 200; number++ {
			answers = append(answers, fine(w.streams.PublishAsync("events.go.b", []byte(strconv.Itoa(number)))))
		}
		<-w.streams.PublishAsyncComplete()
		last := uint64(0)
		for _, answer := range answers {
			select {
			case ack := <-answer.Ok():
				check(last == 0 || ack.Sequence == last+1, "order")
				last = ack.Sequence
			case err := <-answer.Err():
				check(false, err)
			}
		}
		same(w.streams.PublishAsyncPending(), 0)
	}},
	{"publish_once_under_an_id", func(w *world) {
		once := fine(w.streams.Publish(w.context, "events.go.c", nil, jetstream.WithMsgID("go-id")))
		again := fine(w.streams.Publish(w.context, "events.go.c", nil, jetstream.WithMsgID("go-id")))
		check(again.Duplicate && again.Sequence == once.Sequence, again)
	}},
	{"publish_with_expectations", func(w *world) {
		last := fine(w.streams.Publish(w.context, "events.go.d", nil, jetstream.WithMsgID("go-last"))).Sequence
		expected := jetstream.WithExpectLastSequence(last)
		same(fine(w.streams.Publish(w.context, "events.go.d", nil, expected)).Sequence, last+1)
		_, err := w.streams.Publish(w.context, "events.go.d", nil, expected)
		hasCode(err, 10071)
	}},
	{"publish_without_a_stream", func(w *world) {
		_, err := w.streams.Publish(w.context, "nowhere.go", nil, jetstream.WithRetryAttempts(0))
		failsWith(err, jetstream.ErrNoStreamResponse)
	}},
	{"account_info", func(w *world) {
		info := fine(w.streams.AccountInfo(w.context))
		check(info.Streams == 2 && info.Limits.MaxStreams == -1, info)
	}},
	{"stream_info", func(w *world) {
		stream := fine(w.streams.Stream(w.context, "events"))
		before := stream.CachedInfo().State
		fine(w.streams.Publish(w.context, "events.go.e", make([]byte, 1000)))
		info := fine(stream.Info(w.context))
		check(info.Config.Name == "events" && strings.Join(info.Config.Subjects, ",") == "events.>", info.Config)
		check(info.State.Msgs == before.Msgs+1 && info.State.LastSeq == before.LastSeq+1, info.State)
		check(info.State.Bytes > before.Bytes, before.Bytes, info.State.Bytes)
		check(info.Created.Year() >= 2024 && info.State.FirstTime.Year() >= 2024 && info.State.LastTime.Year() >= 2024, info)
		_, err := w.streams.Stream(w.context, "missing")
		failsWith(err, jetstream.ErrStreamNotFound)
	}},
	{"stream_info_by_subject", func(w *world) {
		stream := fine(w.streams.Stream(w.context, "events"))
		for number := 0; number < 3; number++ {
			fine(w.streams.Publish(w.context, fmt.Sprintf("events.go.of.%d", number%2), nil))
		}
		info, err := stream.Info(w.context, jetstream.WithSubjectFilter("events.go.of.*"))
		if hasRefused(err, "subjects_filter") {
			return
		}
		check(err == nil, err)
		same(len(info.State.Subjects), 2)
		same(info.State.Subjects["events.go.of.0"], 2)
	}},
	{"stream_lists", func(w *world) {
		names, infos := 0, 0
		lister := w.streams.StreamNames(w.context)
		for range lister.Name() {
			names++
		}
		list := w.streams.ListStreams(w.context)
		for range list.Info() {
			infos++
		}
		check(lister.Err() == nil && list.Err() == nil && names == 2 && infos == 2, names, infos, lister.Err(), list.Err())
		infos = 0
		list = w.streams.ListStreams(w.context, jetstream.WithStreamListSubject("memory.x"))
		for info := range list.Info() {
			same(info.Config.Name, "memory")
			infos++
		}
		same(infos, 1)
		same(fine(w.streams.StreamNameBySubject(w.context, "events.x")), "events")
		_, err := w.streams.StreamNameBySubject(w.context, "nowhere.x")
		failsWith(err, jetstream.ErrStreamNotFound)
	}},
	{"get_message", func(w *world) {
		stream := fine(w.streams.Stream(w.context, "events"))
		message := nats.NewMsg("events.go.f")
		message.Header.Set("A", "1")
		message.Data = []byte("got")
		sequence := fine(w.streams.PublishMsg(w.context, message)).Sequence
		got := fine(stream.GetMsg(w.context, sequence))
		check(got.Subject == "events.go.f" && string(got.Data) == "got" && got.Header.Get("A") == "1", got)
		check(got.Sequence == sequence && got.Time.Year() >= 2024, got)
		same(fine(stream.GetMsg(w.context, 1, jetstream.WithGetMsgSubject("events.go.f"))).Sequence, sequence)
		_, err := stream.GetMsg(w.context, 999_999)
		failsWith(err, jetstream.ErrMsgNotFound)
		old := fine(w.client.JetStream())
		same(string(fine(old.GetMsg("events", sequence, nats.DirectGet())).Data), "got")
		_, err = old.GetMsg("events", 999_999, nats.DirectGet())
		failsWith(err, nats.ErrMsgNotFound)
	}},
	{"ordered_push", func(w *world) {
		old := fine(w.client.JetStream())
		for _, name := range []string{"events", "memory"} {
			subject := name + ".go.push"
			for number := 0; number < 50; number++ {
				fine(w.streams.Publish(w.context, subject, []byte(strconv.Itoa(number))))
			}
			follower := fine(old.SubscribeSync(subject, nats.OrderedConsumer()))
			for number := 0; number < 50; number++ {
				same(string(next(follower).Data), strconv.Itoa(number))
			}
			fine(w.streams.Publish(w.context, subject, []byte("new")))
			message := next(follower)
			metadata := fine(message.Metadata())
			check(string(message.Data) == "new" && metadata.NumPending == 0 && metadata.Stream == name, metadata)
			same(fine(follower.ConsumerInfo()).NumPending, 0)
			check(follower.Unsubscribe() == nil, "unsubscribe")
		}
	}},
	{"ordered_push_headers_only", func(w *world) {
		old := fine(w.client.JetStream())
		fine(w.streams.Publish(w.context, "events.go.head", []byte("12345")))
		follower := fine(old.SubscribeSync("events.go.head", nats.OrderedConsumer(), nats.HeadersOnly()))
		message := next(follower)
		check(len(message.Data) == 0 && message.Header.Get("Nats-Msg-Size") == "5", message.Header)
		check(follower.Unsubscribe() == nil, "unsubscribe")
	}},
	{"ordered_consume", func(w *world) {
		follower := w.ordered("events", "events.go.consume")
		for number := 0; number < 300; number++ {
			fine(w.streams.Publish(w.context, "events.go.consume", []byte(strconv.Itoa(number))))
		}
		got := make(chan string, 400)
		consuming := fine(follower.Consume(func(message jetstream.Msg) { got <- string(message.Data()) }, jetstream.PullMaxMessages(100)))
		for number := 0; number < 300; number++ {
			same(<-got, strconv.Itoa(number))
		}
		consuming.Stop()
	}},
	{"ordered_consume_by_bytes", func(w *world) {
		follower := w.ordered("events", "events.go.bytes")
		for number := 0; number < 30; number++ {
			fine(w.streams.Publish(w.context, "events.go.bytes", bytes.Repeat([]byte{byte('a' + number)}, 1000)))
		}
		got := make(chan byte, 40)
		consuming := fine(follower.Consume(func(message jetstream.Msg) { got <- message.Data()[0] }, jetstream.PullMaxBytes(4000)))
		for number := 0; number < 30; number++ {
			same(<-got, byte('a'+number))
		}
		consuming.Stop()
	}},
	// Requests expire without messages: the consumer requests again, and is not recreated.
	{"ordered_consume_stays_idle", func(w *world) {
		var errs reported
		got := make(chan jetstream.Msg, 10)
		follower := w.ordered("events", "events.go.idle")
		consuming := fine(follower.Consume(
			func(message jetstream.Msg) { got <- message },
			jetstream.PullExpiry(time.Second), jetstream.PullHeartbeat(500*time.Millisecond),
			jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) { errs.add(err) })))
		fine(w.streams.Publish(w.context, "events.go.idle", []byte("first")))
		name := fine((<-got).Metadata()).Consumer
		time.Sleep(3500 * time.Millisecond)
		fine(w.streams.Publish(w.context, "events.go.idle", []byte("second")))
		message := <-got
		same(string(message.Data()), "second")
		same(fine(message.Metadata()).Consumer, name)
		check(len(errs.all()) == 0, errs.all())
		consuming.Stop()
	}},
	{"ordered_messages", func(w *world) {
		follower := w.ordered("events", "events.go.messages")
		for number := 0; number < 20; number++ {
			fine(w.streams.Publish(w.context, "events.go.messages", []byte(strconv.Itoa(number))))
		}
		messages := fine(follower.Messages())
		for number := 0; number < 20; number++ {
			message := fine(messages.Next())
			same(string(message.Data()), strconv.Itoa(number))
			same(fine(message.Metadata()).NumPending, uint64(19-number))
		}
		messages.Stop()
	}},
	{"ordered_fetch", func(w *world) {
		for number := 0; number < 5; number++ {
			fine(w.streams.Publish(w.context, "events.go.ordered", []byte(strconv.Itoa(number))))
		}
		expectBatch(w.ordered("events", "events.go.ordered").Fetch(4))(0, 4)
		expectBatch(w.ordered("events", "events.go.ordered").Fetch(9, jetstream.FetchMaxWait(500*time.Millisecond)))(0, 5)
		expectBatch(w.ordered("events", "events.go.ordered").FetchNoWait(9))(0, 5)
	}},
	{"fetch", func(w *world) {
		follower := w.consumer("go-fetch", "events.go.fetch")
		for number := 0; number < 10; number++ {
			fine(w.streams.Publish(w.context, "events.go.fetch", []byte(strconv.Itoa(number))))
		}
		expectBatch(follower.Fetch(4))(0, 4)
		expectBatch(follower.FetchNoWait(3))(4, 7)
		// Fewer messages than requested are available.
		expectBatch(follower.Fetch(10, jetstream.FetchMaxWait(500*time.Millisecond)))(7, 10)
		expectBatch(follower.FetchNoWait(3))(10, 10)
	}},
	{"ordered_fetch_bytes", func(w *world) {
		follower := w.ordered("events", "events.go.fetchbytes")
		for number := 0; number < 10; number++ {
			fine(w.streams.Publish(w.context, "events.go.fetchbytes", make([]byte, 1000)))
		}
		batch, count, size := fine(follower.FetchBytes(3500)), 0, 0
		for message := range batch.Messages() {
			count, size = count+1, size+len(message.Data())
		}
		check(batch.Error() == nil && count > 0 && size <= 3500, batch.Error(), count, size)
	}},
	{"next", func(w *world) {
		same(string(fine(w.ordered("events", "events.go.ordered").Next()).Data()), "0")
		follower := w.consumer("go-next", "events.go.next")
		fine(w.streams.Publish(w.context, "events.go.next", []byte("1")))
		same(string(fine(follower.Next()).Data()), "1")
		_, err := follower.Next(jetstream.FetchMaxWait(300 * time.Millisecond))
		failsWith(err, nats.ErrTimeout)
		fine(w.streams.Publish(w.context, "events.go.next", []byte("2")))
		same(string(fine(follower.Next()).Data()), "2")
	}},
	{"ordered_from_somewhere", func(w *world) {
		var sequences []uint64
		for number := 0; number < 5; number++ {
			sequences = append(sequences, fine(w.streams.Publish(w.context, "events.go.start", []byte(strconv.Itoa(number)))).Sequence)
			time.Sleep(2 * time.Millisecond)
		}
		fine(w.streams.Publish(w.context, "events.other", []byte("behind it")))
		stream := fine(w.streams.Stream(w.context, "events"))
		third := fine(stream.GetMsg(w.context, sequences[3])).Time
		for _, start := range []struct {
			config jetstream.OrderedConsumerConfig
			first  string
		}{
			{jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy}, "0"},
			{jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: sequences[2]}, "2"},
			{jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &third}, "3"},
		} {
			start.config.FilterSubjects = []string{"events.go.start"}
			follower := fine(w.streams.OrderedConsumer(w.context, "events", start.config))
			same(string(fine(follower.Next()).Data()), start.first)
		}
	}},
	{"ordered_several_filters", func(w *world) {
		filters := []string{"events.go.many.a", "events.go.many.b.*"}
		for _, subject := range []string{"events.go.many.a", "events.go.many.c", "events.go.many.b.1"} {
			fine(w.streams.Publish(w.context, subject, []byte(subject)))
		}
		follower := fine(w.streams.OrderedConsumer(w.context, "events", jetstream.OrderedConsumerConfig{FilterSubjects: filters}))
		batch := fine(follower.Fetch(2))
		got := ""
		for message := range batch.Messages() {
			got += message.Subject() + " "
		}
		same(got, "events.go.many.a events.go.many.b.1 ")
	}},
	{"consumers", func(w *world) {
		stream := fine(w.streams.Stream(w.context, "events"))
		config := jetstream.ConsumerConfig{Name: "go-own", AckPolicy: jetstream.AckNonePolicy, FilterSubject: "events.go.own"}
		made := fine(stream.CreateOrUpdateConsumer(w.context, config))
		fine(stream.CreateOrUpdateConsumer(w.context, config))
		same(made.CachedInfo().Name, "go-own")
		for number := 0; number < 3; number++ {
			fine(w.streams.Publish(w.context, "events.go.own", nil))
			fine(w.streams.Publish(w.context, "events.go.others", nil))
		}
		same(fine(fine(stream.Consumer(w.context, "go-own")).Info(w.context)).Config.FilterSubject, "events.go.own")
		batch, count := fine(made.Fetch(3)), 0
		for range batch.Messages() {
			count++
		}
		same(count, 3)
		same(fine(made.Info(w.context)).NumPending, 0)
		names := stream.ConsumerNames(w.context)
		found := false
		for name := range names.Name() {
			found = found || name == "go-own"
		}
		infos := stream.ListConsumers(w.context)
		for info := range infos.Info() {
			check(info.Stream == "events", info)
		}
		check(found && names.Err() == nil && infos.Err() == nil, names.Err(), infos.Err())
		check(stream.DeleteConsumer(w.context, "go-own") == nil, "delete")
		_, err := stream.Consumer(w.context, "go-own")
		failsWith(err, jetstream.ErrConsumerNotFound)
		failsWith(stream.DeleteConsumer(w.context, "go-own"), jetstream.ErrConsumerNotFound)
	}},
	{"a_deleted_consumer_ends_its_requests", func(w *world) {
		stream := fine(w.streams.Stream(w.context, "events"))
		config := jetstream.ConsumerConfig{Name: "go-gone", AckPolicy: jetstream.AckNonePolicy, FilterSubject: "events.go.gone"}
		made := fine(stream.CreateConsumer(w.context, config))
		ended := make(chan error, 1)
		go func() {
			_, err := made.Next(jetstream.FetchMaxWait(waitTimeout))
			ended <- err
		}()
		eventually(func() bool { return fine(made.Info(w.context)).NumWaiting == 1 })
		check(stream.DeleteConsumer(w.context, "go-gone") == nil, "delete")
		failsWith(<-ended, jetstream.ErrConsumerDeleted)
	}},
	{"api_errors", func(w *world) {
		failsWith(w.streams.DeleteStream(w.context, "missing"), jetstream.ErrStreamNotFound)
		_, err := w.streams.CreateConsumer(w.context, "missing", jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy})
		failsWith(err, jetstream.ErrStreamNotFound)
		_, err = w.streams.UpdateStream(w.context, jetstream.StreamConfig{Name: "missing"})
		failsWith(err, jetstream.ErrStreamNotFound)
	}},
	{"an_identical_stream_is_there", func(w *world) {
		config := fine(w.streams.Stream(w.context, "events")).CachedInfo().Config
		check(fine(w.streams.CreateStream(w.context, config)).CachedInfo().Config.Name == "events", "create")
		check(fine(w.streams.UpdateStream(w.context, config)).CachedInfo().Config.Name == "events", "update")
		check(fine(w.streams.CreateOrUpdateStream(w.context, config)).CachedInfo().Config.Name == "events", "both")
	}},
	{"a_domain_that_is_not_there", func(w *world) {
		streams := fine(jetstream.NewWithDomain(w.client, "elsewhere"))
		_, err := streams.AccountInfo(w.context)
		check(err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout), err)
	}},
}

// Unsupported features and missing objects.
var refusalCases = []testCase{
	{"refusals", func(w *world) {
		stream := fine(w.streams.Stream(w.context, "events"))
		consumer := func(word string, config jetstream.ConsumerConfig) {
			_, err := stream.CreateConsumer(w.context, config)
			check(hasRefused(err, word), word, ": ", err)
		}
		none := jetstream.AckNonePolicy
		consumer("durable", jetstream.ConsumerConfig{Durable: "d", AckPolicy: none})
		consumer("ack_policy", jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy})
		consumer("replay_policy", jetstream.ConsumerConfig{AckPolicy: none, ReplayPolicy: jetstream.ReplayOriginalPolicy})
		consumer("sample_freq", jetstream.ConsumerConfig{AckPolicy: none, SampleFrequency: "50%"})
		consumer("rate_limit", jetstream.ConsumerConfig{AckPolicy: none, RateLimit: 100})
		consumer("deliver_policy last", jetstream.ConsumerConfig{AckPolicy: none, DeliverPolicy: jetstream.DeliverLastPolicy, FilterSubject: "events.a"})
		consumer("last_per_subject", jetstream.ConsumerConfig{AckPolicy: none, DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, FilterSubject: "events.a"})
		consumer("max_batch", jetstream.ConsumerConfig{AckPolicy: none, MaxRequestBatch: 1})
		created := func(word string, config jetstream.StreamConfig) {
			_, err := w.streams.CreateStream(w.context, config)
			check(hasRefused(err, word), word, ": ", err)
		}
		created("configuration", jetstream.StreamConfig{Name: "other", Subjects: []string{"other.>"}})
		base := stream.CachedInfo().Config
		changed := func(word string, change func(*jetstream.StreamConfig)) {
			config := base
			change(&config)
			created(word, config)
			_, err := w.streams.UpdateStream(w.context, config)
			check(hasRefused(err, word), word, ": ", err)
		}
		changed("max_msgs", func(c *jetstream.StreamConfig) { c.MaxMsgs = 5 })
		changed("storage", func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage })
		changed("retention", func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy })
		changed("discard", func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardNew })
		changed("subjects", func(c *jetstream.StreamConfig) { c.Subjects = []string{"events.>", "more"} })
		changed("max_msgs_per_subject", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 })
		changed("num_replicas", func(c *jetstream.StreamConfig) { c.Replicas = 3 })
		changed("allow_rollup_hdrs", func(c *jetstream.StreamConfig) { c.AllowRollup = true })
		check(hasRefused(w.streams.DeleteStream(w.context, "events"), "configuration"), "delete")
		check(hasRefused(stream.Purge(w.context), "configuration"), "purge")
		check(hasRefused(stream.DeleteMsg(w.context, 1), ""), "delete a message")
		_, err := stream.GetLastMsgForSubject(w.context, "events.go.a")
		check(hasRefused(err, "last"), err)
		_, err = w.streams.CreateKeyValue(w.context, jetstream.KeyValueConfig{Bucket: "kv"})
		check(hasRefused(err, ""), err)
	}},
}

func (w *world) ordered(stream string, filters ...string) jetstream.Consumer {
	config := jetstream.OrderedConsumerConfig{FilterSubjects: filters}
	return fine(w.streams.OrderedConsumer(w.context, stream, config))
}

func (w *world) consumer(name, filter string) jetstream.Consumer {
	config := jetstream.ConsumerConfig{Name: name, AckPolicy: jetstream.AckNonePolicy, FilterSubject: filter}
	return fine(w.streams.CreateOrUpdateConsumer(w.context, "events", config))
}

// Compares a batch with the numbers from one up to another.
func expectBatch(batch jetstream.MessageBatch, err error) func(from, to int) {
	return func(from, to int) {
		check(err == nil, err)
		for message := range batch.Messages() {
			same(string(message.Data()), strconv.Itoa(from))
			from++
		}
		check(batch.Error() == nil && from == to, batch.Error(), from, to)
	}
}

func hasCode(err error, code jetstream.ErrorCode) {
	var refusal *jetstream.APIError
	check(errors.As(err, &refusal) && refusal.ErrorCode == code, err)
}

// Reports whether the server refused with a description that contains this word.
func hasRefused(err error, word string) bool {
	if err == nil {
		return false
	}
	var refusal *jetstream.APIError
	if errors.As(err, &refusal) {
		return strings.Contains(refusal.Description, word)
	}
	return strings.Contains(err.Error(), word)
}
