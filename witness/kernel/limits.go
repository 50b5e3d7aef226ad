// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// limits returns what a view of this process cannot show, "" for nothing beyond the
// package comment.
func (r *Reader) limits() string {
	const text = "network namespaces that have neither a file in %s nor a link to the host are not seen%s"
	dirs := strings.Join(r.dirs, " or ")
	if r.proc == "" {
		return fmt.Sprintf(text, dirs, "")
	}
	// only a procfs of the host shows the threads of the kernel
	if name, err := os.ReadFile(filepath.Join(r.proc, "2", "comm")); err != nil || string(name) != "kthreadd\n" {
		return fmt.Sprintf(text, dirs, ": without hostPID, the processes of the host are invisible")
	}
	return ""
}

// checkPropagation adds the folders whose files are not namespaces because the folder is
// mounted without propagation: the mounts of the host on those files do not arrive here.
func (r *Reader) checkPropagation(plain []string, h *hidden) {
	if len(plain) == 0 {
		return
	}
	for _, dir := range r.dirs {
		for _, path := range plain {
			if filepath.Dir(path) != filepath.Clean(dir) {
				continue
			}
			private, err := privateBind(r.mountinfo, dir)
			switch {
			case err != nil:
				h.add(dir, err)
			case private:
				h.add(dir, errors.New("is mounted without propagation, so that its namespaces do not appear: "+
					"want mountPropagation: HostToContainer"))
			}
			break
		}
	}
}

// privateBind reports whether a folder is below a bind mount of a part of a file system
// that receives no mounts from where it was bound.
func privateBind(mountinfo, dir string) (bool, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		if vanished(err) {
			return false, nil
		}
		return false, err
	}
	file, err := os.Open(mountinfo)
	if err != nil {
		return false, err
	}
	defer func() { _ = file.Close() }() // a file that was only read
	longest, private := -1, false
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text()) // ID, parent, device, root, mount point, options, ...
		if len(fields) < 7 {
			continue
		}
		root, point := fields[3], fields[4]
		if point != dir && point != "/" && !strings.HasPrefix(dir, point+"/") || len(point) < longest {
			continue
		}
		// the last one of the same mount point is on top
		longest = len(point)
		private = root != "/" && !strings.Contains(fields[6], ":") // shared:N, master:N
	}
	return private, lines.Err()
}
