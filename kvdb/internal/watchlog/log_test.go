// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package watchlog_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/internal/watchlog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func batch(rev int64, keys ...string) []kvdb.Event {
	var out []kvdb.Event
	for _, key := range keys {
		out = append(out, kvdb.Event{KeyValue: kvdb.KeyValue{Key: key, ModRevision: rev}})
	}
	return out
}

func open(t *testing.T, l *watchlog.Log, prefix string, from int64) kvdb.Watcher {
	t.Helper()
	w, err := l.Watch(t.Context(), prefix, from)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(w.Close)
	return w
}

func TestWatchersReadAtTheirOwnPace(t *testing.T) {
	g := NewWithT(t)
	l := watchlog.New(10, 7)
	defer l.Close()
	early, some := open(t, l, "", 8), open(t, l, "a/", 0)
	l.Append(8, batch(8, "a", "a/1", "b"))
	l.Append(9, batch(9, "b"))
	l.Append(10, batch(10, "a/2"))
	late := open(t, l, "", 10)
	g.Expect(<-early.Events()).To(Equal(batch(8, "a", "a/1", "b")))
	g.Expect(<-early.Events()).To(Equal(batch(9, "b")))
	g.Expect(<-early.Events()).To(Equal(batch(10, "a/2")))
	g.Expect(<-some.Events()).To(Equal(batch(8, "a/1")))
	g.Expect(<-some.Events()).To(Equal(batch(10, "a/2")))
	g.Expect(<-late.Events()).To(Equal(batch(10, "a/2")))
	g.Expect(early.Err()).NotTo(HaveOccurred())
}

func TestBatchesAreTheReceivers(t *testing.T) {
	g := NewWithT(t)
	l := watchlog.New(10, 0)
	defer l.Close()
	l.Append(1, batch(1, "a", "b"))
	clear(<-open(t, l, "", 1).Events())
	g.Expect(<-open(t, l, "", 1).Events()).To(Equal(batch(1, "a", "b")))
}

func TestWhatIsForgottenIsCompacted(t *testing.T) {
	for name, c := range map[string]struct {
		change func(l *watchlog.Log)
		oldest int64 // that can be watched
	}{
		"before the start":    {func(*watchlog.Log) {}, 6},
		"full":                {func(l *watchlog.Log) { l.Append(6, nil); l.Append(7, nil); l.Append(8, nil) }, 6},
		"more than full":      {func(l *watchlog.Log) { l.Append(6, nil); l.Append(7, nil); l.Append(8, nil); l.Append(9, nil) }, 7},
		"gap":                 {func(l *watchlog.Log) { l.Append(6, nil); l.Append(8, nil) }, 8},
		"skip":                {func(l *watchlog.Log) { l.Append(6, nil); l.Skip(8) }, 9},
		"skip to where it is": {func(l *watchlog.Log) { l.Append(6, nil); l.Skip(6); l.Skip(5) }, 6},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			l := watchlog.New(3, 5)
			defer l.Close()
			c.change(l)
			_, err := l.Watch(t.Context(), "", c.oldest-1)
			g.Expect(err).To(MatchError(kvdb.ErrCompacted))
			w := open(t, l, "", c.oldest)
			w.Close()
			g.Expect(w.Err()).NotTo(HaveOccurred())
		})
	}
}

func TestIdleWatchLearnsOfSkip(t *testing.T) {
	g := NewWithT(t)
	l := watchlog.New(3, 0)
	defer l.Close()
	behind, ahead := open(t, l, "", 0), open(t, l, "", 6)
	l.Skip(5)
	g.Expect(<-behind.Events()).To(BeNil())
	g.Expect(behind.Err()).To(MatchError(kvdb.ErrCompacted))
	l.Append(6, batch(6, "a"))
	g.Expect(<-ahead.Events()).To(Equal(batch(6, "a")))
}

func TestSlowReaderKeepsItsBatchAndNoMore(t *testing.T) {
	g := NewWithT(t)
	l := watchlog.New(2, 0)
	defer l.Close()
	w := open(t, l, "", 1)
	l.Append(1, batch(1, "a"))
	g.Expect(<-w.Events()).To(Equal(batch(1, "a")))
	for rev := int64(2); rev < 100; rev++ {
		l.Append(rev, batch(rev, "a"))
	}
	next := int64(2)
	for b := range w.Events() {
		g.Expect(b).To(Equal(batch(next, "a")))
		next++
	}
	g.Expect(w.Err()).To(MatchError(kvdb.ErrCompacted))
}

func TestEnds(t *testing.T) {
	g := NewWithT(t)
	l := watchlog.New(2, 0)
	ctx, cancel := context.WithCancel(t.Context())
	byContext, err := l.Watch(ctx, "", 0)
	g.Expect(err).NotTo(HaveOccurred())
	byClose, idle, unread := open(t, l, "", 0), open(t, l, "b", 0), open(t, l, "", 0)
	l.Append(1, batch(1, "a"))
	cancel()
	for range byContext.Events() {
	}
	g.Expect(byContext.Err()).NotTo(HaveOccurred())
	byClose.Close()
	g.Expect(byClose.Events()).To(BeClosed())
	l.Close()
	l.Close()
	g.Expect(idle.Events()).To(BeClosed())
	g.Expect(idle.Err()).To(MatchError(kvdb.ErrClosed))
	g.Expect(unread.Events()).To(BeClosed())
	g.Expect(unread.Err()).To(MatchError(kvdb.ErrClosed))
	g.Expect(byClose.Err()).NotTo(HaveOccurred())

	_, err = l.Watch(t.Context(), "", 0)
	g.Expect(err).To(MatchError(kvdb.ErrClosed))
	_, err = watchlog.New(2, 0).Watch(ctx, "", 0)
	g.Expect(err).To(MatchError(context.Canceled))
}

// A reader that is never further behind than the log is long misses nothing;
// one that is may be compacted, but sees no gap before.
func TestNoGapProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewWithT(t)
		limit := rapid.IntRange(1, 8).Draw(t, "limit")
		start := rapid.Int64Range(0, 5).Draw(t, "start")
		l := watchlog.New(limit, start)
		defer l.Close()
		w, err := l.Watch(context.Background(), "", 0)
		g.Expect(err).NotTo(HaveOccurred())
		last, read := start, start
		for _, burst := range rapid.SliceOfN(rapid.IntRange(0, 10), 1, 8).Draw(t, "bursts") {
			for range burst {
				last++
				l.Append(last, batch(last, "a"))
			}
			for read < last {
				b, ok := <-w.Events()
				if !ok {
					g.Expect(w.Err()).To(MatchError(kvdb.ErrCompacted))
					g.Expect(burst).To(BeNumerically(">", limit))
					return
				}
				read++
				g.Expect(b).To(Equal(batch(read, "a")))
			}
		}
	})
}
