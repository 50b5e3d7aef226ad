// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/columns"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// record is a controller.Record as it comes over the wire: methods are words.
type record struct {
	controller.Record
	Method string
}

func (a *app) eventsCmd() *cobra.Command {
	var follow bool
	var since sinceFlag
	var filter eventFilter
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what the event loop has done, and why",
		Long: `events shows what the event loop has done, and why. With --follow it goes on with
what comes, each event once, until it is interrupted; it waits for an agent that
goes away, and says so on standard error where the agent was restarted, which
then counts events anew.`,
		Example: `  cadastre events -f
  cadastre events --since 5m
  cadastre events --since 100 -o wide
  cadastre events --pod default/web --failed`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			if err := filter.check(); err != nil {
				return err
			}
			show := a.events
			if follow {
				show = a.follow
			}
			if since.age > 0 {
				filter.after = a.now().Add(-since.age)
			}
			if err := show(ctx, since.seq, filter); err != nil {
				return fmt.Errorf("events: %w", err)
			}
			return nil
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with those to come, until interrupted")
	cmd.Flags().Var(&since, "since", "begin with the event of this number, or of this age such as 5m, `SEQ|AGE`")
	cmd.Flags().StringVar(&filter.pod, "pod", "", "only those of this pod, `NAMESPACE/NAME`")
	cmd.Flags().StringVar(&filter.address, "address", "", "only those of a pod that got, wanted or gave back `ADDRESS`")
	addNamespace(cmd, &filter.namespace, "only those of pods in this `NAMESPACE`")
	cmd.Flags().BoolVar(&filter.failed, "failed", false, "only those that failed")
	completeValues(cmd, "since")
	a.completeFlag(cmd, "pod", podNames)
	a.completeFlag(cmd, "address", leasedAddresses)
	return cmd
}

// eventFilter holds the flags that select events, as the agent's API takes them.
type eventFilter struct {
	pod, address string
	namespace    string    // the program selects by it, the API does not
	after        time.Time // likewise; zero: all
	failed       bool
}

// sinceFlag holds the begin of a list of events: the number of an event, or an age.
type sinceFlag struct {
	seq uint64
	age time.Duration
}

// Set implements pflag.Value.
func (f *sinceFlag) Set(s string) error {
	if seq, err := strconv.ParseUint(s, 10, 64); err == nil {
		*f = sinceFlag{seq: seq}
		return nil
	}
	age, err := time.ParseDuration(s)
	if err != nil || age <= 0 {
		return errors.New("want the number of an event, such as 100, or an age, such as 5m")
	}
	*f = sinceFlag{age: age}
	return nil
}

// String implements pflag.Value.
func (f *sinceFlag) String() string {
	if f.age > 0 {
		return f.age.String()
	}
	return strconv.FormatUint(f.seq, 10)
}

// Type implements pflag.Value.
func (f *sinceFlag) Type() string { return "since" }

func (f *eventFilter) check() (err error) {
	if err := checkNamespace(f.namespace); err != nil {
		return err
	}
	if f.pod != "" {
		if f.pod, err = fullPod(f.pod, f.namespace); err != nil {
			return err
		}
	}
	if _, err := netip.ParseAddr(f.address); f.address != "" && err != nil {
		return usagef("--address: %q is not an IP address: write one such as 10.1.5.7", f.address)
	}
	return nil
}

// selects reports whether an event is of the namespace.
func (f eventFilter) selects(raw json.RawMessage) bool {
	if f.namespace == "" && f.after.IsZero() {
		return true
	}
	var r struct {
		Subject         controller.Subject
		ProcessingStart time.Time
	}
	return json.Unmarshal(raw, &r) == nil && inNamespace(r.Subject.Pod, f.namespace) &&
		!r.ProcessingStart.Before(f.after)
}

// query returns the arguments of a request for the events from a number on.
func (f eventFilter) query(from uint64) url.Values {
	v := url.Values{"since": {strconv.FormatUint(from, 10)}}
	if f.pod != "" {
		v.Set("pod", f.pod)
	}
	if f.address != "" {
		v.Set("address", f.address)
	}
	if f.failed {
		v.Set("failed", "true")
	}
	return v
}

func (a *app) events(ctx context.Context, from uint64, filter eventFilter) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	c := a.client()
	body, err := c.do(ctx, http.MethodGet, localapi.PathEvents+"?"+filter.query(from).Encode(), nil)
	if err != nil {
		return err
	}
	defer body.Close()
	return a.listEvents(ctx, c, body, filter)
}

// eachEvent hands what body contains to f, one event after the other.
func eachEvent(ctx context.Context, c *client, body io.Reader, f func(json.RawMessage) error) error {
	d := json.NewDecoder(body)
	for {
		var raw json.RawMessage
		err := d.Decode(&raw)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the agent's answer: %w", c.plain(ctx, err))
		}
		if err := f(raw); err != nil {
			return err
		}
	}
}

func (a *app) listEvents(ctx context.Context, c *client, body io.Reader, filter eventFilter) error {
	all := []json.RawMessage{}
	err := eachEvent(ctx, c, body, func(raw json.RawMessage) error {
		if filter.selects(raw) {
			all = append(all, raw)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !a.forPeople() {
		return a.print(all, nil)
	}
	for _, raw := range all {
		if err := a.printEvent(raw); err != nil {
			return err
		}
	}
	return nil
}

// printEvent prints one event of a stream. Programs get it as the agent has
// written it, with whatever fields a newer agent may have added.
func (a *app) printEvent(raw json.RawMessage) error {
	switch a.output {
	case formatJSON:
		line, err := encode(raw, "")
		if err != nil {
			return fmt.Errorf("print as json: %w", err)
		}
		return a.write(line)
	case formatYAML:
		doc, err := yaml.JSONToYAML(raw)
		if err != nil {
			return fmt.Errorf("print as yaml: %w", err)
		}
		return a.write(append([]byte("---\n"), doc...))
	case formatTable, formatWide:
	default: // -o name, or a template for each event
		return a.print(raw, nil)
	}
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	return a.write([]byte(a.eventText(r, a.output == formatWide)))
}

// eventText returns "#12 15:04:05.123 Add Pod default/web 1.2ms ok  ipam: leased 10.1.5.2/24".
func (a *app) eventText(r record, wide bool) string {
	outcome := "ok"
	if r.Error != "" {
		outcome = "failed"
	}
	line := fmt.Sprintf(
		"#%d %s %s %s %s",
		r.SeqNum,
		r.ProcessingStart.In(a.now().Location()).Format("15:04:05.000"),
		strings.TrimSpace(r.Name+" "+r.Subject.Pod),
		took(r.ProcessingEnd.Sub(r.ProcessingStart)),
		outcome,
	)
	if details := eventDetails(r); len(details) > 0 {
		line += "  " + strings.Join(details, "; ")
	}
	line = columns.Clean(line) + "\n"
	if !wide {
		return line
	}
	for _, more := range eventLines(r) {
		line += "    " + columns.Clean(more) + "\n"
	}
	return line
}

// eventDetails returns the errors and changes of an event in a few words.
func eventDetails(r record) []string {
	var all []string
	if r.Error != "" {
		all = append(all, oneLine(r.Error))
	}
	for _, h := range r.Handlers {
		if h.Change != "" && !h.Revert {
			all = append(all, h.Handler+": "+oneLine(h.Change))
		}
		if h.Error != "" && !strings.Contains(r.Error, h.Error) {
			all = append(all, h.Handler+": "+oneLine(h.Error))
		}
	}
	for _, e := range []struct{ what, text string }{{"commit", r.CommitError}, {"transaction", r.TxnError}} {
		if e.text != "" && !strings.Contains(r.Error, e.text) {
			all = append(all, e.what+": "+oneLine(e.text))
		}
	}
	if r.Note != "" {
		all = append(all, r.Note)
	}
	if r.IsFollowUp {
		all = append(all, fmt.Sprintf("follow-up of #%d", r.FollowUpTo))
	}
	return all
}

// eventLines returns all that is known of an event.
func eventLines(r record) []string {
	lines := []string{fmt.Sprintf("%s, waited %s", r.Method, took(r.Waited))}
	for line := range strings.Lines(r.Description) {
		if line = strings.TrimSpace(line); line != "" && line != r.Name {
			lines = append(lines, line)
		}
	}
	for _, h := range r.Handlers {
		line := h.Handler + " " + took(h.Duration)
		if h.Revert {
			line += " reverted"
		}
		if h.Change != "" {
			line += ": " + oneLine(h.Change)
		}
		if h.Error != "" {
			line += ": error: " + oneLine(h.Error)
		}
		lines = append(lines, line)
	}
	for _, x := range []struct {
		what  string
		lines []string
	}{{"transaction", r.Txn}, {"from outside", r.External}, {"refused", r.Refused}, {"verification", r.Verification}} {
		for _, t := range x.lines {
			lines = append(lines, x.what+": "+oneLine(t))
		}
	}
	return lines
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// took returns a duration with two or three digits.
func took(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		d = d.Round(time.Second)
	case d >= 10*time.Millisecond:
		d = d.Round(time.Millisecond)
	case d >= time.Millisecond:
		d = d.Round(100 * time.Microsecond)
	default:
		d = d.Round(time.Microsecond)
	}
	return strings.ReplaceAll(d.String(), "µ", "u")
}
