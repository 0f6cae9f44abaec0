// Checks of go-coap against a server with demo resources, and against one with workers; the last line of output confirms
// that all of them succeeded.
//
// Usage: client coap://HOST:PORT coap://HOST:PORT
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/plgd-dev/go-coap/v3/message/pool"
	"github.com/plgd-dev/go-coap/v3/udp"
	"github.com/plgd-dev/go-coap/v3/udp/client"
)

const welcome = "welcome to the plugtest"

type checker struct {
	ctx        context.Context
	connection *client.Conn
}

func dial(ctx context.Context, url string) checker {
	connection, err := udp.Dial(strings.TrimPrefix(url, "coap://"))
	if err != nil {
		log.Fatal(err)
	}
	return checker{ctx, connection}
}

// body returns the body of a response with the expected code.
func body(name string, expected codes.Code, response *pool.Message, err error) []byte {
	if err != nil {
		log.Fatalf("%s: %v", name, err)
	}
	if response.Code() != expected {
		log.Fatalf("%s: %v, not %v", name, response.Code(), expected)
	}
	bytes, err := response.ReadBody()
	if err != nil {
		log.Fatalf("%s: %v", name, err)
	}
	return bytes
}

func equal(name string, got, expected []byte) {
	if !bytes.Equal(got, expected) {
		log.Fatalf("%s: %d bytes, not the %d expected ones", name, len(got), len(expected))
	}
}

func (c checker) get(expected codes.Code, path string, options ...message.Option) []byte {
	response, err := c.connection.Get(c.ctx, path, options...)
	return body("GET "+path, expected, response, err)
}

func (c checker) put(expected codes.Code, path string, payload []byte, options ...message.Option) []byte {
	response, err := c.connection.Put(c.ctx, path, message.TextPlain, bytes.NewReader(payload), options...)
	return body("PUT "+path, expected, response, err)
}

func (c checker) post(expected codes.Code, path string, payload []byte) []byte {
	response, err := c.connection.Post(c.ctx, path, message.TextPlain, bytes.NewReader(payload))
	return body("POST "+path, expected, response, err)
}

func pattern(size int) []byte {
	pattern := make([]byte, size)
	for at := range pattern {
		pattern[at] = byte('a' + at/16%26)
	}
	return pattern
}

func (c checker) methods() {
	equal("GET", c.get(codes.Content, "/test"), []byte(welcome))
	request, err := c.connection.NewGetRequest(c.ctx, "/test")
	if err != nil {
		log.Fatal(err)
	}
	request.SetType(message.NonConfirmable)
	response, err := c.connection.Do(request)
	equal("NON", body("NON", codes.Content, response, err), []byte(welcome))
	c.post(codes.Created, "/test", []byte("x"))
	c.put(codes.Changed, "/test", []byte("x"))
	c.put(codes.Changed, "/test", nil)
	response, err = c.connection.Delete(c.ctx, "/test")
	equal("DELETE", body("DELETE", codes.Deleted, response, err), nil)
	query := message.Option{ID: message.URIQuery, Value: []byte("first=1")}
	equal("query", c.get(codes.Content, "/query", query), []byte("first=1"))
}

func (c checker) blocks() {
	if size := len(c.get(codes.Content, "/large")); size != 1700 {
		log.Fatalf("/large: %d bytes", size)
	}
	for _, size := range []int{1, 1024, 1025, 50_000} {
		c.put(codes.Changed, "/large-update", pattern(size))
		equal("/large-update", c.get(codes.Content, "/large-update"), pattern(size))
	}
	equal("/large-post", c.post(codes.Changed, "/large-post", pattern(5000)), bytes.ToUpper(pattern(5000)))
}

func (c checker) conditions() {
	absent := message.Option{ID: message.IfNoneMatch}
	c.put(codes.Created, "/create1", []byte("one"), absent)
	c.put(codes.PreconditionFailed, "/create1", []byte("two"), absent)
}

func (c checker) errors() {
	c.get(codes.NotFound, "/nothing")
	c.post(codes.MethodNotAllowed, "/large", []byte("x"))
	c.get(codes.NotAcceptable, "/multi-format", message.Option{ID: message.Accept, Value: []byte{50}})
	c.get(codes.BadOption, "/test", message.Option{ID: 65001, Value: []byte("x")})
}

// observation checks that states arrive in order. go-coap 3.1 asks for the next block of a notification by a request of
// type acknowledgement, which servers have to ignore (RFC 7252, section 4.2), so all states fit one message.
func (c checker) observation() {
	c.put(codes.Changed, "/obs", []byte("initial"))
	received := make(chan []byte, 16)
	observation, err := c.connection.Observe(c.ctx, "/obs", func(notification *pool.Message) {
		received <- body("notification", codes.Content, notification, nil)
	})
	if err != nil {
		log.Fatalf("observe: %v", err)
	}
	equal("first state", <-received, []byte("initial"))
	for _, state := range [][]byte{[]byte("second"), []byte("third")} {
		c.put(codes.Changed, "/obs", state)
		equal("state", <-received, state)
	}
	if err := observation.Cancel(c.ctx); err != nil {
		log.Fatalf("cancel: %v", err)
	}
}

func (c checker) workers() {
	if pid := c.get(codes.Content, "/sleep/1500"); len(pid) == 0 {
		log.Fatal("/sleep: no body")
	}
	expected := make([]byte, 50_000)
	for at := range expected {
		expected[at] = byte(at % 251)
	}
	equal("/sized", c.get(codes.Content, "/sized/50000"), expected)
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	demo, app := dial(ctx, os.Args[1]), dial(ctx, os.Args[2])
	demo.methods()
	demo.blocks()
	demo.conditions()
	demo.errors()
	demo.observation()
	app.workers()
	fmt.Println("all checks passed")
}
