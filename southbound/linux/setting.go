// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
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

// writeSetting gives a setting a value, unless it has it.
func writeSetting(name, value string) error {
	have, err := readSetting(name)
	if err != nil || have == value {
		return err
	}
	file, err := os.OpenFile(settingPath(name), os.O_WRONLY, 0) // os.WriteFile would create it
	if err == nil {
		_, err = file.WriteString(value)
		err = errors.Join(err, file.Close())
	}
	switch {
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf(
			"set %s from %s to %s: /proc/sys is read-only: run `sysctl -w %s=%s` on the node, "+
				"or mount the node's /proc/sys/net writable at /proc/sys/net",
			name, have, value, name, value)
	case err != nil:
		return fmt.Errorf("set %s from %s to %s: %w", name, have, value, err)
	}
	return nil
}
