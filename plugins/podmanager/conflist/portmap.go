// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package conflist

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// PortMap is the type and the file name of the plugin that makes host ports.
const PortMap = "portmap"

// versionTimeout bounds the time of a plugin that is asked for its versions.
const versionTimeout = 5 * time.Second

// PortMapVersions runs the portmap of a folder of plugins and returns the versions of the
// specification that it has, nil if the folder does not have it.
func PortMapVersions(ctx context.Context, binDir string) ([]string, error) {
	path := filepath.Join(binDir, PortMap)
	if info, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("find portmap for the CNI list: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	out, err := cmd.Output()
	var answer struct {
		SupportedVersions []string `json:"supportedVersions"`
	}
	if err == nil {
		err = json.Unmarshal(out, &answer)
	}
	if err == nil && len(answer.SupportedVersions) == 0 {
		err = errors.New("it names no version")
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s for its versions of the CNI specification: %w", path, err)
	}
	return answer.SupportedVersions, nil
}
