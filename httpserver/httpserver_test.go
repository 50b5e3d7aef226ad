// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package httpserver_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/cadastre/cadastre/httpserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pipes is a listener whose connections are pipes, which simulated time ends.
type pipes struct {
	dialed chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.dialed:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

// dial returns the caller's end of a new connection once the server has accepted it.
func (p *pipes) dial() net.Conn {
	own, other := net.Pipe()
	p.dialed <- other
	return own
}

// limits are small, and differ from each other.
func limits() httpserver.Limits {
	return httpserver.Limits{Connections: 2, Header: 2 * time.Second, Read: 10 * time.Second, Write: 20 * time.Second, Idle: 30 * time.Second, Body: 100}
}

// inBubble runs a server in simulated time.
func inBubble(t *testing.T, handler http.HandlerFunc, test func(g Gomega, callers *pipes)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		callers := newPipes()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- httpserver.New(httpserver.Config{Listener: callers, Handler: handler, Limits: limits()}).Serve(ctx)
		}()
		test(g, callers)
		cancel()
		g.Expect(<-ended).To(Succeed())
	})
}

// send writes text in the background: the server may not read all of it.
func send(c net.Conn, text string) {
	go func() { _, _ = io.WriteString(c, text) }()
}

// read returns the next answer.
func read(g Gomega, c net.Conn) (status int, body string) {
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	g.Expect(err).NotTo(HaveOccurred())
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	g.Expect(err).NotTo(HaveOccurred())
	return r.StatusCode, string(text)
}

// echo answers with the body, or says why it cannot be read.
func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_, _ = w.Write(body)
}

const half = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nhalf"

// TestLargeHeaders: a header takes no more memory than a caller has use for.
func TestLargeHeaders(t *testing.T) {
	for size, want := range map[int]int{32 << 10: http.StatusOK, 128 << 10: http.StatusRequestHeaderFieldsTooLarge} {
		inBubble(t, echo, func(g Gomega, callers *pipes) {
			conn := callers.dial()
			defer conn.Close()
			send(conn, "GET / HTTP/1.1\r\nHost: a\r\nX: "+strings.Repeat("x", size)+"\r\n\r\n")
			status, _ := read(g, conn)
			g.Expect(status).To(Equal(want), "%d bytes", size)
		})
	}
}

// TestSlowCallers: each kind of slow caller has its limit, after which the
// connection is closed.
func TestSlowCallers(t *testing.T) {
	for name, c := range map[string]struct {
		sent  string
		after time.Duration
	}{
		"nothing is sent":                      {"", limits().Header},
		"half of the header":                   {"POST / HT", limits().Header},
		"half of the body":                     {half, limits().Read},
		"half of a body that no handler reads": {"GET /unread HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nhalf", limits().Read},
		"no second request":                    {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", limits().Idle},
	} {
		t.Run(name, func(t *testing.T) {
			handler := func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/unread" {
					echo(w, r)
				}
			}
			inBubble(t, handler, func(g Gomega, callers *pipes) {
				conn, began := callers.dial(), time.Now()
				defer conn.Close()
				send(conn, c.sent)
				_, err := io.Copy(io.Discard, conn)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(time.Since(began)).To(BeNumerically("~", c.after, time.Second))
			})
		})
	}
}

// TestACallerThatReadsNothing: the handler learns of it.
func TestACallerThatReadsNothing(t *testing.T) {
	var took atomic.Int64 // a channel would have to be of the bubble
	handler := func(w http.ResponseWriter, _ *http.Request) {
		began := time.Now()
		if _, err := w.Write(make([]byte, 1<<20)); err != nil {
			took.Store(int64(time.Since(began)))
		}
	}
	inBubble(t, handler, func(g Gomega, callers *pipes) {
		conn := callers.dial()
		defer conn.Close()
		send(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		time.Sleep(time.Hour)
		g.Expect(time.Duration(took.Load())).To(Equal(limits().Write))
	})
}

// TestWhatTakesLong: neither a handler that works for long, nor a stream, nor a long
// answer to a caller that reads slowly but steadily is cut off.
func TestWhatTakesLong(t *testing.T) {
	const long = time.Hour
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		pause   time.Duration // of the caller before each part that it reads
		want    int           // bytes
	}{
		"a handler": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			time.Sleep(long)
			if r.Context().Err() == nil {
				_, _ = io.WriteString(w, "done")
			}
		}, 0, 4},
		"a stream": {func(w http.ResponseWriter, _ *http.Request) {
			for range 4 {
				time.Sleep(long)
				_, _ = io.WriteString(w, "x")
				_ = http.NewResponseController(w).Flush()
			}
		}, 0, 4},
		"a slow reader": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) }, 9 * time.Second, 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, c.handler, func(g Gomega, callers *pipes) {
				conn := callers.dial()
				defer conn.Close()
				send(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab")
				r, err := http.ReadResponse(bufio.NewReaderSize(conn, 32<<10), nil)
				g.Expect(err).NotTo(HaveOccurred())
				got, buf := 0, make([]byte, 32<<10)
				for err == nil {
					var n int
					n, err = io.ReadFull(r.Body, buf)
					got += n
					time.Sleep(c.pause)
				}
				g.Expect(err).To(Or(Equal(io.EOF), Equal(io.ErrUnexpectedEOF)))
				g.Expect(got).To(Equal(c.want))
			})
		})
	}
}

// TestAFullListener: further callers wait until one of the others leaves or has been
// silent for too long.
func TestAFullListener(t *testing.T) {
	inBubble(t, echo, func(g Gomega, callers *pipes) {
		began := time.Now()
		for range limits().Connections {
			slow := callers.dial()
			defer slow.Close()
			send(slow, half)
			go func() { _, _ = io.Copy(io.Discard, slow) }()
		}
		next := callers.dial()
		defer next.Close()
		g.Expect(time.Since(began)).To(BeNumerically("~", limits().Read, time.Second), "it was accepted when the first one was closed")
		send(next, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		status, _ := read(g, next)
		g.Expect(status).To(Equal(http.StatusOK))
	})
}

// TestIdleConnectionsMakeRoom: a connection of a full listener ends with its answer.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	inBubble(t, echo, func(g Gomega, callers *pipes) {
		began := time.Now()
		for range 5 * limits().Connections {
			c := callers.dial()
			defer c.Close()
			send(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			status, _ := read(g, c)
			g.Expect(status).To(Equal(http.StatusOK))
			go func() { _, _ = io.Copy(io.Discard, c) }()
			synctest.Wait()
		}
		g.Expect(time.Since(began)).To(BeZero())
	})
}

// TestALargeBody is not read to its end.
func TestALargeBody(t *testing.T) {
	inBubble(t, echo, func(g Gomega, callers *pipes) {
		c := callers.dial()
		defer c.Close()
		send(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\n\r\n"+strings.Repeat("x", 101))
		status, body := read(g, c)
		g.Expect(status).To(Equal(http.StatusBadRequest))
		g.Expect(body).To(ContainSubstring("request body too large"))
	})
}

// TestTheEnd: what is under way is answered, within a limit, and silent callers are
// not waited for.
func TestTheEnd(t *testing.T) {
	for name, took := range map[string]time.Duration{"a request ends": time.Second, "a request does not end": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				callers, begun := newPipes(), make(chan struct{})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					close(begun)
					select {
					case <-time.After(took):
					case <-r.Context().Done():
					}
				})
				go func() { ended <- httpserver.New(httpserver.Config{Listener: callers, Handler: handler}).Serve(ctx) }()
				c := callers.dial()
				defer c.Close()
				send(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
				<-begun
				began := time.Now()
				cancel()
				_, err := http.ReadResponse(bufio.NewReader(c), nil)
				g.Expect(err == nil).To(Equal(took == time.Second), "%v", err)
				g.Expect(<-ended).To(Succeed())
				g.Expect(time.Since(began)).To(BeNumerically("<=", 6*time.Second))
			})
		})
	}
}

// broken is a listener that fails.
type broken struct{ *pipes }

func (broken) Accept() (net.Conn, error) { return nil, errors.New("out of order") }

func TestAListenerThatFails(t *testing.T) {
	g := NewWithT(t)
	err := httpserver.New(httpserver.Config{Listener: broken{newPipes()}, Handler: http.HandlerFunc(echo)}).Serve(t.Context())
	g.Expect(err).To(MatchError("answer on pipes: out of order"))
}

// TestShares: all listeners together leave a reserve of descriptors.
func TestShares(t *testing.T) {
	g := NewWithT(t)
	for _, files := range []uint64{192, 256, 1024, 4096, 65536, 1 << 40} {
		s, err := httpserver.Share(files)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(s.Local+3*s.Other).To(BeNumerically("<=", files-96), "%d descriptors: %+v", files, s)
		g.Expect(s.Local).To(BeNumerically(">=", 3*s.Other))
		g.Expect(s.Other).To(BeNumerically(">=", 16))
	}
	_, err := httpserver.Share(191)
	g.Expect(err).To(MatchError(ContainSubstring("share 191 file descriptors (RLIMIT_NOFILE) among the listeners: want at least 192")))
}

// Example answers on a socket that a test can reach.
func Example() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	server := httpserver.New(httpserver.Config{Listener: l, Handler: http.NotFoundHandler(), Limits: httpserver.Limits{Connections: 16}})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := server.Serve(ctx); err != nil {
		panic(err)
	}
	// Output:
}
