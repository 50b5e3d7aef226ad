// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.etcd.io/bbolt"

	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// past holds the files that a killed agent has left.
type past struct {
	*node
	data  []byte   // of the database
	notes [][]byte // what is noted of it
	used  int      // bytes of the database that are in use
	page  int
	held  Book
}

// newPast lets an agent allocate some addresses and kills it.
func newPast(t *testing.T, n *node, count int) *past {
	t.Helper()
	g := NewWithT(t)
	a := n.start(t)
	for i := range count {
		_, f, err := ask(n.socket(), Key{"net", fmt.Sprint("p", i), "eth0"}.request(Add), leaving{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(f).To(Equal(Answered))
	}
	held, _, err := readBook(n.socket())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(held).NotTo(BeEmpty())
	a.kill()
	p := &past{node: n, held: held}
	p.data, err = os.ReadFile(n.db())
	g.Expect(err).NotTo(HaveOccurred())
	p.notes = n.readNotes(g)
	copied := filepath.Join(n.dir, "used.db")
	g.Expect(os.WriteFile(copied, p.data, 0o600)).To(Succeed())
	db, err := bbolt.Open(copied, 0o600, &bbolt.Options{ReadOnly: true})
	g.Expect(err).NotTo(HaveOccurred())
	p.page = db.Info().PageSize
	g.Expect(db.View(func(tx *bbolt.Tx) error { p.used = int(tx.Size()); return nil })).To(Succeed())
	g.Expect(db.Close()).To(Succeed())
	return p
}

// notePaths are the files outside of the database that note its newest commit.
func (n *node) notePaths() []string {
	return []string{filepath.Join(n.runDir, "db.note"), n.db() + ".note"}
}

func (n *node) readNotes(g *WithT) (all [][]byte) {
	for _, path := range n.notePaths() {
		data, err := os.ReadFile(path)
		g.Expect(err).NotTo(HaveOccurred())
		all = append(all, data)
	}
	return all
}

func (n *node) writeNotes(g *WithT, all [][]byte) {
	for i, path := range n.notePaths() {
		g.Expect(os.WriteFile(path, all[i], 0o600)).To(Succeed())
	}
}

// restore puts a database in the place of the one that is there.
func (p *past) restore(g *WithT, data []byte) {
	g.Expect(os.WriteFile(p.db(), data, 0o600)).To(Succeed())
	p.writeNotes(g, p.notes)
}

// refuses is nil where the agent does not start, says in one line why, and
// leaves the file alone.
func (p *past) refuses(t *testing.T, data []byte) error {
	t.Helper()
	a := p.launch(t)
	defer a.kill()
	if err := a.awaitServing(); err == nil {
		return fmt.Errorf("it serves:\n%s", a.log())
	} else if !a.hasEnded() {
		return err
	}
	return p.refused(a, data)
}

func (p *past) refused(a *agent, data []byte) error {
	var errs []error
	say := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	log := a.log()
	if code := a.cmd.ProcessState.ExitCode(); code != 1 {
		say("exit code %d (%s)", code, a.cmd.ProcessState)
	}
	if n := strings.Count(log, "level=ERROR"); n != 1 || !strings.Contains(log, p.db()) {
		say("%d errors in the log, 1 that names %s was expected", n, p.db())
	}
	for _, s := range []string{"panic", "goroutine ", "SIG", "unexpected fault"} {
		if strings.Contains(log, s) {
			say("the log has %q", s)
		}
	}
	if now, err := os.ReadFile(p.db()); err != nil || !bytes.Equal(now, data) {
		say("the file was changed (%d bytes, now %d) %v", len(data), len(now), err)
	}
	if errs != nil {
		say("%s", log)
	}
	return errors.Join(errs...)
}

func TestDamagedFileIsRefused(t *testing.T) {
	p := newPast(t, newNode(t, roomyConf), 40)
	cut := func(n int) func([]byte) []byte { return func(b []byte) []byte { return b[:n] } }
	zero := func(from, to int) func([]byte) []byte {
		return func(b []byte) []byte { clear(b[from:to]); return b }
	}
	for name, damage := range map[string]func([]byte) []byte{
		"cut to nothing":               cut(0),
		"cut to a byte":                cut(1),
		"cut to half a page":           cut(p.page / 2),
		"cut to a page":                cut(p.page),
		"cut to two pages":             cut(2 * p.page),
		"cut to half of it":            cut(p.used / 2),
		"its last page cut off":        cut(p.used - p.page),
		"its last byte cut off":        cut(p.used - 1),
		"its first two pages zero":     zero(0, 2*p.page),
		"its first four pages zero":    zero(0, 4*p.page),
		"all zero":                     zero(0, len(p.data)),
		"all but the first two pages":  zero(2*p.page, len(p.data)),
		"text":                         func([]byte) []byte { return bytes.Repeat([]byte("not a database\n"), 5000) },
		"both checksums wrong":         func(b []byte) []byte { b[16+56]++; b[p.page+16+56]++; return b },
		"the pages in the wrong order": func(b []byte) []byte { slices.Reverse(b[2*p.page : p.used]); return b },
		"bytes flipped all over the file": func(b []byte) []byte {
			for i := 7; i < p.used; i += 97 {
				b[i] ^= 0x55
			}
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			attack.Begin(t, attack.Damage).Add(1)
			g := NewWithT(t)
			data := damage(bytes.Clone(p.data))
			p.restore(g, data)
			g.Expect(p.refuses(t, data)).To(Succeed())
		})
	}
	g := NewWithT(t)
	p.restore(g, p.data)
	p.start(t)
	g.Expect(p.same()).To(Succeed(), "undamaged")
}

// TestDamagedRecords changes one character of one lease, wherever the file has
// it: that is found out, since it would give the address to another owner.
func TestDamagedRecords(t *testing.T) {
	p := newPast(t, newNode(t, roomyConf), 40)
	victim := p.held[20]
	a, b := victim.Addr.As4(), victim.Addr.As4()
	b[2] ^= 4 // free
	for name, c := range map[string]struct{ from, to string }{
		"its key":          {"Ldefault\x00" + string(a[:]), "Ldefault\x00" + string(b[:])},
		"its address":      {"\x0a\x04" + string(a[:]), "\x0a\x04" + string(b[:])},
		"its container ID": {"\x03" + victim.Key.ContainerID, "\x03" + strings.ToUpper(victim.Key.ContainerID)},
	} {
		t.Run(name, func(t *testing.T) {
			attack.Begin(t, attack.Damage).Add(1)
			g := NewWithT(t)
			data := bytes.ReplaceAll(p.data, []byte(c.from), []byte(c.to))
			g.Expect(data).NotTo(Equal(p.data))
			p.restore(g, data)
			g.Expect(p.refuses(t, data)).To(Succeed())
		})
	}
}

// same is nil where the agent holds what was held, says so, and works.
func (p *past) same() error {
	book, _, err := readBook(p.socket())
	if err != nil {
		return err
	}
	if !slices.Equal(book, p.held) {
		return fmt.Errorf("%d are held, there were %d", len(book), len(p.held))
	}
	var report localapi.CheckReport
	if err := get(p.socket(), localapi.PathCheckLedger, &report); err != nil {
		return err
	}
	if len(report.Findings) > 0 {
		return fmt.Errorf("check: %+v", report.Findings)
	}
	for _, h := range p.held {
		r, f, err := ask(p.socket(), h.Key.request(Add), leaving{})
		addrs, _ := addresses(r.IPs)
		if err != nil || f != Answered || len(addrs) != 1 || addrs[0] != h.Addr {
			return fmt.Errorf("a repeated ADD of %s: %s %v %w, it holds %s", h.Key, f, r, err, h.Addr)
		}
	}
	return nil
}

// awaitResync waits until the agent's first resync is done.
func (n *node) awaitResync() error {
	for limit := time.Now().Add(patience); time.Now().Before(limit); time.Sleep(time.Millisecond) {
		var s localapi.Status
		if err := get(n.socket(), localapi.PathStatus, &s); err != nil || s.Loop.Resynced {
			return err
		}
	}
	return errors.New("no resync has succeeded yet")
}

// suspended is true where STATUS and a new ADD are refused.
func (p *past) suspended(id string) (bool, error) {
	if err := p.awaitResync(); err != nil {
		return false, err
	}
	r, _, err := ask(p.socket(), cni.Request{Command: "STATUS", Network: "net"}, leaving{})
	if err != nil {
		return false, err
	}
	_, f, err := ask(p.socket(), Key{"net", id, "eth0"}.request(Add), leaving{})
	if status := r.Error != nil && r.Error.Code == cni.CodeNotAvailable; status == (f == Refused) {
		return status, err
	}
	return false, fmt.Errorf("STATUS: %w, but a new ADD was %s", r.Error, f)
}

// TestRandomDamage damages a little of the file: whatever becomes of it, the
// agent refuses it, or holds what was held, or sees that the file is older and
// allocates nothing.
func TestRandomDamage(t *testing.T) {
	tried := attack.Begin(t, attack.Damage)
	g := NewWithT(t)
	s := effort.Seed(t)
	rnd := random(s, 0)
	p := newPast(t, newNode(t, roomyConf), 40)
	counts := map[string]int{}
	for i := range effort.Times(t, 60) {
		tried.Add(1)
		what, data := p.damage(rnd)
		p.restore(g, data)
		outcome, err := p.judge(t, data, fmt.Sprint("new", i))
		kind, _, _ := strings.Cut(what, " at ")
		counts[kind+": "+outcome]++
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	t.Logf("%v", counts)
}

// damage is a copy of the file with one thing wrong.
func (p *past) damage(rnd *rand.Rand) (what string, data []byte) {
	data = bytes.Clone(p.data)
	at := rnd.IntN(p.used)
	page := at / p.page * p.page
	switch rnd.IntN(5) {
	case 0:
		data[at] ^= 1 << rnd.IntN(8)
		return fmt.Sprintf("a bit flipped at %d", at), data
	case 1:
		data[at] = byte(rnd.Int())
		return fmt.Sprintf("a byte changed at %d", at), data
	case 2:
		clear(data[page : page+p.page])
		return fmt.Sprintf("a page zeroed at %d", page), data
	case 3:
		at = at / 512 * 512
		clear(data[at : at+512])
		return fmt.Sprintf("a sector zeroed at %d", at), data
	}
	from := rnd.IntN(p.used/p.page) * p.page
	copy(data[page:page+p.page], p.data[from:from+p.page])
	return fmt.Sprintf("a page misplaced at %d from %d", page, from), data
}

// judge starts an agent on damaged data and says what came of it.
func (p *past) judge(t *testing.T, data []byte, id string) (outcome string, err error) {
	a := p.launch(t)
	defer a.kill()
	if a.awaitServing() != nil {
		if !a.hasEnded() {
			return "hangs", fmt.Errorf("it neither serves nor ends:\n%s", a.log())
		}
		return "refused", p.refused(a, data)
	}
	suspended, err := p.suspended(id)
	switch {
	case err == nil && suspended && !strings.Contains(a.log(), "cadastre accept"):
		return "WRONG", fmt.Errorf("it allocates nothing and does not say why:\n%s", a.log())
	case err == nil && suspended:
		return "suspended", nil
	}
	if err == nil {
		_, _, err = ask(p.socket(), Key{"net", id, "eth0"}.request(Del), leaving{})
	}
	if err == nil {
		err = p.same()
	}
	if err != nil {
		return "WRONG", fmt.Errorf("%w\n%s", err, a.log())
	}
	return "harmless", nil
}
