// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// settingPath returns the file of a setting such as net.ipv4.ip_forward, of the network
// namespace of the calling thread. The names of links may have dots.
func settingPath(name string) string {
	parts := strings.SplitN(name, ".", 4)
	if len(parts) == 4 { // net.ipv6.conf.LINK.SETTING
		at := strings.LastIndexByte(parts[3], '.')
		if at > 0 {
			parts = append(parts[:3], parts[3][:at], parts[3][at+1:])
		}
	}
	return filepath.Join(append([]string{"/proc/sys"}, parts...)...)
}

// readSetting returns the value of a setting.
func readSetting(name string) (string, error) {
	have, err := os.ReadFile(settingPath(name))
	return strings.TrimSpace(string(have)), err
}

// nodeSettings is the folder below which a manifest mounts the node's /proc/sys/net: that
// of a container itself is read-only, and a runtime mounts nothing below /proc. The files
// are those of the network namespace of the calling thread, wherever they are mounted.
const nodeSettings = "/host"

// writeSetting gives a setting a value, unless it has it.
func writeSetting(name, value string) error {
	have, err := readSetting(name)
	if err != nil || have == value {
		return err
	}
	err = writeFile(settingPath(name), value)
	if errors.Is(err, unix.EROFS) {
		if elsewhere := writeFile(nodeSettings+settingPath(name), value); !errors.Is(elsewhere, fs.ErrNotExist) {
			err = elsewhere
		}
	}
	switch {
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf(
			"set %s from %s to %s: /proc/sys is read-only: run `sysctl -w %s=%s` on the node, "+
				"or mount the node's /proc/sys/net writable at /host/proc/sys/net",
			name, have, value, name, value)
	case err != nil:
		return fmt.Errorf("set %s from %s to %s: %w", name, have, value, err)
	}
	return nil
}

func writeFile(path, value string) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0) // os.WriteFile would create it
	if err == nil {
		_, err = file.WriteString(value)
		err = errors.Join(err, file.Close())
	}
	return err
}
