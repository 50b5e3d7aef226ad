// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ec2_test

import (
	"flag"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/spf13/pflag"

	"github.com/cadastre/cadastre/providers/ec2"
	"github.com/cadastre/cadastre/providers/ec2/mototest"
)

// parse returns options with flags.
func parse(args ...string) (*ec2.Options, error) {
	o, fs := &ec2.Options{}, pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.Flags(fs)
	return o, fs.Parse(args)
}

func TestFlagsNameWhatIsWrong(t *testing.T) {
	g := NewWithT(t)
	for value, want := range map[string]string{
		"--ec2-subnet-tags=pods":               `parse tag "pods": want KEY=VALUE`,
		"--ec2-instance-tags==1":               `parse tag "=1"`,
		"--ec2-instance-limits=m5.large=3":     "want TYPE=INTERFACES:IPV4:IPV6",
		"--ec2-instance-limits=m5.large=0:1:1": "want TYPE=INTERFACES:IPV4:IPV6",
		"--ec2-instance-limits==3:10:10":       "want TYPE=INTERFACES:IPV4:IPV6",
	} {
		_, err := parse(value)
		g.Expect(err).To(MatchError(ContainSubstring(want)), value)
	}
	o, err := parse()
	g.Expect(err).NotTo(HaveOccurred())
	_, _, err = o.Open(t.Context(), slog.New(slog.DiscardHandler), 1, 1)
	g.Expect(err).To(MatchError(ContainSubstring("--ec2-cluster")))
}

// The agent's flags are those of the standard library, which asks a value of the same type
// for its text.
func TestFlagsWorkInTheAgent(t *testing.T) {
	g := NewWithT(t)
	own, fs := pflag.NewFlagSet("test", pflag.ContinueOnError), flag.NewFlagSet("test", flag.ContinueOnError)
	(&ec2.Options{}).Flags(own)
	own.VisitAll(func(f *pflag.Flag) { fs.Var(f.Value, f.Name, f.Usage) })
	var help strings.Builder
	fs.SetOutput(&help)
	fs.PrintDefaults()
	g.Expect(help.String()).NotTo(ContainSubstring("panic"))
	g.Expect(fs.Parse([]string{"-ec2-instance-tags=a=1,b=", "-ec2-instance-tags", "c=3", "-ec2-instance-limits=x=1:2:3,y=3:10:1"})).To(Succeed())
	g.Expect(fs.Lookup("ec2-instance-tags").Value.String()).To(Equal("a=1,b=,c=3"))
	g.Expect(fs.Lookup("ec2-instance-limits").Value.String()).To(Equal("x=1:2:3,y=3:10:1"))
}

func TestRequestsPassTheBudget(t *testing.T) {
	g := NewWithT(t)
	server := mototest.Start(t)
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	o, err := parse("--ec2-cluster=test", "--ec2-region="+mototest.Region, "--ec2-endpoint="+server.URL)
	g.Expect(err).NotTo(HaveOccurred())
	c, metrics, err := o.Open(t.Context(), slog.New(slog.DiscardHandler), 100, 10)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = c.Read(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	text, err := testutil.CollectAndFormat(metrics, expfmt.TypeTextPlain, "cadastre_cloud_requests_total")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(text)).To(And(ContainSubstring(`operation="DescribeInstances"`), ContainSubstring(`cloud="ec2"`)))
}

// TestRequestBodyOutlivesTheAnswer reads a request's body after its answer, as net/http may.
func TestRequestBodyOutlivesTheAnswer(t *testing.T) {
	g := NewWithT(t)
	var body io.Reader
	c, err := ec2.New(t.Context(), ec2.Config{
		Cluster:     "test",
		Region:      mototest.Region,
		Credentials: mototest.Credentials(),
		Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			body = r.Body
			text, err := io.ReadAll(io.LimitReader(body, r.ContentLength))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(text)).To(ContainSubstring("Action=DescribeInstances"))
			return answer(http.StatusForbidden, "UnauthorizedOperation"), nil
		}),
	})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = c.Read(t.Context())
	g.Expect(err).To(MatchError(ContainSubstring("UnauthorizedOperation")))
	surplus, err := io.Copy(io.Discard, body)
	g.Expect(err).NotTo(HaveOccurred(), "net/http would close the connection")
	g.Expect(surplus).To(BeZero())
}

// roundTripper is a function that sends requests.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The instance metadata service is a fake: moto has none.
func TestMachineKnowsItself(t *testing.T) {
	g := NewWithT(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token":
			w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "60")
			_, _ = io.WriteString(w, "token")
		case r.Header.Get("X-Aws-Ec2-Metadata-Token") != "token":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/latest/meta-data/instance-id":
			_, _ = io.WriteString(w, "i-0123456789abcdef0")
		case r.URL.Path == "/latest/dynamic/instance-identity/document":
			_, _ = io.WriteString(w, `{"region": "eu-central-1"}`)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer server.Close()
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", "/nonexistent")
	c, err := ec2.New(t.Context(), ec2.Config{Cluster: "test", MetadataEndpoint: server.URL, Credentials: mototest.Credentials()})
	g.Expect(err).NotTo(HaveOccurred(), "the region is the machine's")
	g.Expect(c.Self(t.Context())).To(Equal("i-0123456789abcdef0"))
	server.Close()
	_, err = c.Self(t.Context())
	g.Expect(err).To(MatchError(ContainSubstring("instance metadata service")))
	_, err = ec2.New(t.Context(), ec2.Config{Cluster: "test", MetadataEndpoint: server.URL})
	g.Expect(err).To(MatchError(ContainSubstring("--ec2-region")))
	_, err = ec2.New(t.Context(), ec2.Config{})
	g.Expect(err).To(MatchError(ContainSubstring("Cluster is empty")))
}
