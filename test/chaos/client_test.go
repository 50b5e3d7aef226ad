// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/cniclient"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// Errors of exchange that tell what may have become of the request.
var (
	errNotSent   = errors.New("there is no listener")
	errLost      = errors.New("the connection broke")
	errAbandoned = errors.New("the client went away")
)

// leaving selects the moment at which a client ends before it has an answer.
type leaving struct {
	after time.Duration // 0: it stays
	// half closes the sending side only: the agent sees that the client is
	// gone, and the client sees what the agent made of it. Otherwise both sides
	// are closed, and only an answer that was sent before is seen: whatever the
	// agent sends later fails for it.
	half bool
	gone bool
	// connected is called when the client is connected; nil: nothing is.
	connected func()
}

func (l *leaving) goAway(conn *net.UnixConn) error {
	if l.half {
		return conn.CloseWrite()
	}
	l.gone = true
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var shut error // both sides at one moment
	err = raw.Control(func(fd uintptr) { shut = syscall.Shutdown(int(fd), syscall.SHUT_RDWR) })
	return errors.Join(err, shut)
}

// exchange is one HTTP request on a connection of its own.
func exchange(socket, method, path string, body []byte, leave leaving) (status int, answer []byte, err error) {
	resp, err := roundTrip(socket, method, path, body, leave)
	if err != nil {
		return 0, nil, err
	}
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}

// roundTrip is exchange. The body of the response is in memory.
func roundTrip(socket, method, path string, body []byte, leave leaving) (*http.Response, error) {
	conn, err := net.DialTimeout("unix", socket, patience)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotSent, err)
	}
	defer conn.Close()
	if leave.connected != nil {
		leave.connected()
	}
	req := fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: cadastre\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body)
	if _, err := conn.Write(req); err != nil {
		return nil, fmt.Errorf("%w: %w", errLost, err)
	}
	first := patience * 3
	if leave.after > 0 {
		first = leave.after
	}
	data, err := readAll(conn.(*net.UnixConn), first, leave)
	if err != nil {
		return nil, err
	}
	return response(data)
}

// response takes an answer apart.
func response(data []byte) (*http.Response, error) {
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(data)), nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errLost, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errLost, err)
	}
	resp.Body = io.NopCloser(bytes.NewReader(answer))
	return resp, nil
}

// readAll reads until the agent closes. A client that leaves does so only
// while it has not seen the first byte.
func readAll(conn *net.UnixConn, wait time.Duration, leave leaving) ([]byte, error) {
	var data []byte
	buf := make([]byte, 64<<10)
	for {
		if err := conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return nil, err
		}
		n, err := conn.Read(buf)
		data = append(data, buf[:n]...)
		var timeout net.Error
		switch {
		case err == nil:
			wait = patience
		case errors.Is(err, io.EOF) && len(data) > 0:
			return data, nil
		case errors.Is(err, io.EOF) && leave.gone:
			return nil, errAbandoned
		case !errors.As(err, &timeout) || !timeout.Timeout():
			return nil, fmt.Errorf("%w: %w", errLost, err)
		case leave.after == 0 || len(data) > 0:
			return nil, fmt.Errorf("no answer in %s", wait)
		default:
			if err := leave.goAway(conn); err != nil {
				return nil, fmt.Errorf("%w: %w", errLost, err)
			}
			wait, leave.after = patience, 0
		}
	}
}

// get reads a JSON value of the local API.
func get(socket, path string, into any) error {
	status, answer, err := exchange(socket, http.MethodGet, path, nil, leaving{})
	if err != nil {
		return fmt.Errorf("GET %s: %w", path, err)
	}
	if status != http.StatusOK {
		return fmt.Errorf("GET %s: status %d: %s", path, status, answer)
	}
	return json.Unmarshal(answer, into)
}

// readBook reads what is held for pods, and how many infra leases there are.
func readBook(socket string) (book Book, infra int, err error) {
	var leases []localapi.Lease
	if err := get(socket, localapi.PathLeases, &leases); err != nil {
		return nil, 0, err
	}
	book = Book{}
	for _, l := range leases {
		switch {
		case l.State != "held" && l.State != "cooling":
			return nil, 0, fmt.Errorf("%s is %s (%s)", l.IP, l.State, l.Reason)
		case l.Purpose == "infra":
			infra++
		case l.State == "held":
			a, err := netip.ParseAddr(l.IP)
			if err != nil {
				return nil, 0, err
			}
			book = append(book, holding{Key{l.Network, l.ContainerID, l.IfName}, a})
		}
	}
	return book, infra, nil
}

// reply holds the agent's answer to a CNI request.
type reply struct {
	cni.Reply
	Error *cni.Error
}

// replyOf reads the answer to a CNI request.
func replyOf(resp *http.Response) (r reply, err error) {
	r.Reply, err = cniclient.Answer(resp)
	if errors.As(err, &r.Error) {
		return r, nil
	}
	return r, err
}

// ask posts a CNI request. An error in the reply is not returned as err; if err is set, the
// fate is the outcome of the request.
func ask(socket string, req cni.Request, leave leaving) (reply, Fate, error) {
	resp, err := roundTrip(socket, http.MethodPost, cni.Path, cniclient.Body(req), leave)
	switch {
	case errors.Is(err, errNotSent):
		return reply{}, NotSent, nil
	case errors.Is(err, errAbandoned):
		return reply{}, Abandoned, nil
	case errors.Is(err, errLost):
		return reply{}, Lost, nil
	case err != nil:
		return reply{}, "", err
	case resp.StatusCode == http.StatusServiceUnavailable:
		return reply{}, Lost, nil
	}
	r, err := replyOf(resp)
	switch {
	case err != nil:
		return reply{}, "", fmt.Errorf("%s: %w", req.Command, err)
	case r.Error != nil:
		return r, Refused, nil //nolint:nilerr // the reply carries it
	}
	return r, Answered, nil
}

func (k Key) request(v Verb) cni.Request {
	return cni.Request{
		Command: string(v), Network: k.Network, ContainerID: k.ContainerID, IfName: k.IfName, Netns: "/run/netns/" + k.ContainerID,
		Pod: cni.Pod{Namespace: "chaos", Name: "pod-" + k.ContainerID},
	}
}

// addresses are those of a result, without their masks.
func addresses(ips []cni.IP) ([]netip.Addr, error) {
	var as []netip.Addr
	for _, ip := range ips {
		p, err := netip.ParsePrefix(ip.Address)
		if err != nil {
			return nil, err
		}
		as = append(as, p.Addr())
	}
	slices.SortFunc(as, netip.Addr.Compare)
	return as, nil
}

// plugin runs cadastre-cni. listed is for GC.
func plugin(socket string, k Key, v Verb, listed []cni.Attachment) (stdout []byte, ok bool, err error) {
	return pluginIn(socket, k, v, "/run/netns/"+k.ContainerID, listed)
}

// pluginIn runs cadastre-cni with the path of a network namespace.
func pluginIn(socket string, k Key, v Verb, netns string, listed []cni.Attachment) (stdout []byte, ok bool, err error) {
	cmd, err := pluginCommand(socket, k, v, netns, listed)
	if err != nil {
		return nil, false, err
	}
	stdout, err = cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return stdout, false, nil
	}
	return stdout, err == nil, err
}

// pluginCommand returns the command of cadastre-cni.
func pluginCommand(socket string, k Key, v Verb, netns string, listed []cni.Attachment) (*exec.Cmd, error) {
	conf := map[string]any{
		"cniVersion": "1.1.0", "name": k.Network, "type": "bridge", "ipam": map[string]any{"type": "cadastre-cni", "socket": socket},
	}
	if v == GC {
		conf["cni.dev/valid-attachments"] = listed
	}
	stdin, err := json.Marshal(conf)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program("cadastre-cni"))
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.Env = []string{
		"CNI_COMMAND=" + string(v), "CNI_CONTAINERID=" + k.ContainerID, "CNI_IFNAME=" + k.IfName, "CNI_NETNS=" + netns,
		"CNI_PATH=/opt/cni/bin", "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=chaos;K8S_POD_NAME=pod-" + k.ContainerID,
	}
	return cmd, nil
}

// run asks through cadastre-cni.
func run(socket string, k Key, v Verb, listed []cni.Attachment) (reply, Fate, error) {
	return runIn(socket, k, v, "/run/netns/"+k.ContainerID, listed)
}

// runIn asks through cadastre-cni with the path of a network namespace.
func runIn(socket string, k Key, v Verb, netns string, listed []cni.Attachment) (reply, Fate, error) {
	out, ok, err := pluginIn(socket, k, v, netns, listed)
	if err != nil {
		return reply{}, "", fmt.Errorf("cadastre-cni %s: %w", v, err)
	}
	var r reply
	if ok {
		if v == Add {
			err = json.Unmarshal(out, &r.Reply)
		}
		return r, Answered, err
	}
	r.Error = &cni.Error{}
	if err := json.Unmarshal(out, r.Error); err != nil {
		return r, "", fmt.Errorf("cadastre-cni %s: %q: %w", v, out, err)
	}
	if strings.Contains(r.Error.Msg, "does not answer") || strings.Contains(r.Error.Msg, "does not serve") {
		return r, Lost, nil
	}
	return r, Refused, nil
}
