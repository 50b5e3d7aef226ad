// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/cadastre/cadastre/cloud"
)

var _ cloud.Self = (*Cloud)(nil)

// metadata is the part of the machine's metadata that says which one it is.
const metadata = "openstack/latest/meta_data.json"

// Self implements cloud.Self: by the mounted config drive of the configuration, then by the
// metadata service.
func (c *Cloud) Self(ctx context.Context) (string, error) {
	var tried error
	if c.config.ConfigDrive != "" {
		text, err := os.ReadFile(filepath.Join(c.config.ConfigDrive, metadata))
		id, err := uuid(text, err)
		if err == nil {
			return id, nil
		}
		tried = fmt.Errorf("config drive: %w", err)
	}
	id, err := uuid(c.fetch(ctx, c.config.MetadataURL))
	if err != nil {
		return "", fmt.Errorf("find the ID of this machine: %w", errors.Join(tried, err))
	}
	return id, nil
}

func uuid(text []byte, err error) (string, error) {
	if err != nil {
		return "", err
	}
	var data struct {
		UUID string `json:"uuid"`
	}
	if err := json.Unmarshal(text, &data); err != nil {
		return "", fmt.Errorf("metadata is not JSON: %w", err)
	}
	if data.UUID == "" {
		return "", errors.New("metadata has no uuid")
	}
	return data.UUID, nil
}

// fetch reads from the metadata service, which is not part of the API and its budget.
func (c *Cloud) fetch(ctx context.Context, url string) ([]byte, error) {
	const most = 1 << 20
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("metadata service: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("metadata service %s: %s", url, response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, most))
}
