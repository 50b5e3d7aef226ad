// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/cadastre/cadastre/witness"
)

// maxSocketPath is the longest path that fits in the address of a socket.
const maxSocketPath = 107

// sockets returns the paths of the sockets to read.
func (r *Reader) sockets() ([]string, error) {
	switch r.opt.Endpoint {
	case None:
		return nil, fmt.Errorf("%w: the configuration says that this node has no runtime", witness.ErrNotApplicable)
	case Auto:
		return existing(r.opt.Sockets)
	}
	path, err := ParseEndpoint(r.opt.Endpoint)
	if err != nil {
		return nil, err
	}
	if found, err := existing([]string{path}); err != nil || len(found) == 1 {
		return found, err
	}
	return nil, fmt.Errorf("found no socket at %s", path)
}

// ParseEndpoint returns the path of an endpoint such as unix:///run/containerd/containerd.sock.
func ParseEndpoint(endpoint string) (path string, err error) {
	const want = "want auto, none, or unix:///PATH such as unix:///run/containerd/containerd.sock"
	path, ok := strings.CutPrefix(endpoint, "unix://")
	switch {
	case !ok || !strings.HasPrefix(path, "/"):
		return "", fmt.Errorf("parse endpoint %q: %s", endpoint, want)
	case len(path) > maxSocketPath:
		return "", fmt.Errorf("parse endpoint %q: want a path of at most %d bytes", endpoint, maxSocketPath)
	}
	return path, nil
}

// existing returns those of the paths at which there is a socket, each socket once. A
// path that cannot be examined, or has another file, is an error: a runtime may be there.
func existing(paths []string) (found []string, err error) {
	var seen []os.FileInfo
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
			continue
		case err != nil:
			return nil, fmt.Errorf("find the socket of a runtime: %w", err)
		case info.Mode().Type() != fs.ModeSocket:
			return nil, fmt.Errorf("find the socket of a runtime: %s is not a socket (%s)", path, info.Mode())
		}
		again := false
		for _, s := range seen {
			again = again || os.SameFile(s, info)
		}
		if !again {
			seen, found = append(seen, info), append(found, path)
		}
	}
	return found, nil
}
