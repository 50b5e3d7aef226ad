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

// HostPorts tells whether the pods of a list get the host ports that they ask for.
type HostPorts struct {
	Versions []string // of the specification, of portmap; nil: a list does without it, and no pod gets a host port
	Reason   string   // why Versions is nil, or why it is assumed; "": portmap has told it
}

// PortMap is the type and the file name of the plugin that makes host ports.
const PortMap = "portmap"

// versionTimeout bounds the time of a plugin that is asked for its versions.
const versionTimeout = 5 * time.Second

// assumed returns the versions of a portmap that this process cannot run: those of the
// plugins since 1.0, so 1.1.0 is not among them.
func assumed() []string { return []string{"0.3.1", "0.4.0", "1.0.0"} }

// FindPortMap looks for portmap in a folder of plugins, and asks it for its versions. The
// runtime runs portmap among the files of the node. An agent in a container may lack
// those that portmap needs, such as the loader of a dynamically linked program, or the
// target of a link. Then the versions are assumed.
func FindPortMap(ctx context.Context, binDir string) HostPorts {
	path := filepath.Join(binDir, PortMap)
	unseen, err := look(path)
	if err != nil {
		return HostPorts{Reason: err.Error()}
	}
	var versions []string
	if unseen == "" {
		versions, err = askVersions(ctx, path)
		if !cannotRunHere(err) {
			if err != nil {
				return HostPorts{Reason: err.Error()}
			}
			return HostPorts{Versions: versions}
		}
		unseen = err.Error()
	}
	const why = ": the runtime runs it on the node, so its versions are assumed"
	return HostPorts{Versions: assumed(), Reason: unseen + why}
}

// look returns an error if no runtime can run the file at path. unseen says why this
// process cannot tell; "": it can.
func look(path string) (unseen string, err error) {
	link, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s does not exist", path)
	}
	if err != nil {
		return "", fmt.Errorf("find portmap: %w", err)
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && link.Mode().Type() == fs.ModeSymlink:
		return lookBehind(path)
	case err != nil:
		return "", fmt.Errorf("find portmap: %w", err)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is of type %s: want a file", path, info.Mode().Type())
	case info.Mode().Perm()&0o111 == 0:
		return "", fmt.Errorf("%s has mode %s: it is not executable", path, info.Mode().Perm())
	}
	return "", nil
}

// lookBehind tells about a link whose target is not there. If its folder is missing too, it
// may be one of the node that this process does not see.
func lookBehind(path string) (unseen string, err error) {
	target, err := os.Readlink(path)
	if err != nil {
		return "", fmt.Errorf("find portmap: %w", err)
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(path), target)
	}
	if _, err := os.Stat(filepath.Dir(target)); err == nil {
		return "", fmt.Errorf("%s is a link to %s, which does not exist", path, target)
	}
	return fmt.Sprintf("%s is a link to %s, whose folder this agent does not see", path, target), nil
}

// cannotRunHere reports whether a program could not begin, but may on the node: its loader
// is missing here, or its folder is mounted without the right to execute.
func cannotRunHere(err error) bool {
	_, begun := errors.AsType[*exec.ExitError](err)
	return !begun && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission))
}

// askVersions runs a plugin for the versions of the specification that it has.
func askVersions(ctx context.Context, path string) ([]string, error) {
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
