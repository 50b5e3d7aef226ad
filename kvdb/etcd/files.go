// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"strings"
)

// Files holds the paths of the secrets of a Config. Empty ones are not used; Cert and Key
// are given together.
type Files struct {
	CA        string // certificates, which the server's is checked with
	Cert, Key string // the client's own
	Password  string // without the end of its line
}

// File is one of the Files.
type File string

// The files; a certificate and its key are one.
const (
	FileCA       File = "CA"
	FileCert     File = "certificate and key"
	FilePassword File = "password"
)

// FileError names the file that cannot be used. The caller adds the name of the setting
// that it came from. Err has the path, unless it is about a
// certificate and its key, which may both be to blame.
type FileError struct {
	File File
	Err  error
}

func (e *FileError) Error() string { return string(e.File) + ": " + e.Err.Error() }

// Unwrap returns the error of the file.
func (e *FileError) Unwrap() error { return e.Err }

// Read sets TLS and Password of c to what is in the files. All its errors are a
// *FileError, after which c is as it was.
func (f Files) Read(c *Config) error {
	secure, err := f.tls()
	if err != nil {
		return err
	}
	password, err := f.password()
	if err != nil {
		return err
	}
	c.TLS, c.Password = secure, password
	return nil
}

// tls is nil where no file is for it.
func (f Files) tls() (*tls.Config, error) {
	if f.CA == "" && f.Cert == "" && f.Key == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CA != "" {
		pem, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, &FileError{FileCA, err}
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, &FileError{
				FileCA,
				&fs.PathError{Op: "read", Path: f.CA, Err: errors.New("the file has no certificate")},
			}
		}
	}
	if f.Cert != "" || f.Key != "" {
		cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, &FileError{FileCert, err}
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c, nil
}

func (f Files) password() (string, error) {
	if f.Password == "" {
		return "", nil
	}
	text, err := os.ReadFile(f.Password)
	if err != nil {
		return "", &FileError{FilePassword, err}
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" {
		return "", &FileError{
			FilePassword,
			&fs.PathError{Op: "read", Path: f.Password, Err: errors.New("the file is empty")},
		}
	}
	return password, nil
}
