// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/ipam"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
)

// connected is an IPAM that a Source connects with a store, in simulated time. Programs
// have no more than the published calls.
type connected struct {
	*ipam.IPAM
	g      Gomega
	store  *mem.Store
	source *ipam.Source
	cidrs  atomic.Int64 // calls with the CIDRs of pods
}

func connect(t *testing.T, config *config, set *kv.NetResourceSet) *connected {
	c := &connected{g: NewWithT(t), store: mem.New()}
	t.Cleanup(func() { _ = c.store.Close() })
	if set != nil {
		c.write(set)
	}
	c.start(t, config)
	return c
}

func (c *connected) start(t *testing.T, config *config) {
	var err error
	c.source, err = ipam.NewSource(context.Background(), ipam.SourceDeps{
		Store: c.store, Node: "n1", Metrics: ipam.NewMetrics(), Marks: &kv.NetResourceMarks{MinAllocate: 3}, NoWait: true,
		CIDRs: func(v4, _ []*ipam.CIDR) { c.cidrs.Add(int64(len(v4))) },
	})
	c.g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { c.g.Expect(c.source.Close()).To(Succeed()) })
	c.IPAM = ipam.NewIPAM("n1", nil, config, c.source, c.source, nil)
	c.g.Expect(c.Err()).NotTo(HaveOccurred())
	synctest.Wait()
}

func (c *connected) put(key string, m proto.Message) {
	value, err := proto.Marshal(m)
	c.g.Expect(err).NotTo(HaveOccurred())
	_, err = c.store.Txn(context.Background(), nil, []kvdb.Op{kvdb.Put(key, value)})
	c.g.Expect(err).NotTo(HaveOccurred())
	synctest.Wait()
}

func (c *connected) write(set *kv.NetResourceSet) { c.put(kv.NetResourceSetKey("n1"), set) }

// The published function returns when the node has addresses: a program restores those of
// its running pods next, and then calls RestoreFinished.
func TestNewIPAMWaitsForTheAddressesOfTheNode(t *testing.T) {
	for _, named := range []string{"vpc-eni", "cluster-pool-v2beta"} {
		t.Run(named, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &connected{g: NewWithT(t), store: mem.New()}
				t.Cleanup(func() { _ = c.store.Close() })
				var err error
				c.source, err = ipam.NewSource(context.Background(), ipam.SourceDeps{Store: c.store, Node: "n1"})
				c.g.Expect(err).NotTo(HaveOccurred())
				done := make(chan struct{})
				go func() {
					defer close(done)
					c.IPAM = ipam.NewIPAM("n1", nil, mode(named), c.source, c.source, nil)
					c.g.Expect(c.AllocateIPString("10.0.0.7", "default/a")).To(Succeed())
					c.RestoreFinished()
				}()
				time.Sleep(time.Minute)
				synctest.Wait()
				select {
				case <-done:
					t.Fatal("the node has no NetResourceSet yet")
				default:
				}
				set := eniSet("10.0.0.7", "10.0.0.8", "fd00::7")
				if named != "vpc-eni" {
					set = &kv.NetResourceSet{Name: "n1", PodCidrs: []string{"10.0.0.0/24", "fd00::/64"}}
				}
				c.write(set)
				<-done
				c.g.Expect(c.source.Close()).To(Succeed())
			})
		})
	}
}

func TestNewIPAMReturnsWhenItsSourceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mem.New()
		defer func() { _ = store.Close() }()
		ctx, stop := context.WithCancel(t.Context())
		source, err := ipam.NewSource(ctx, ipam.SourceDeps{Store: store, Node: "n1"})
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		time.AfterFunc(time.Minute, stop)
		m := ipam.NewIPAM("n1", nil, mode("vpc-eni"), source, source, nil)
		_, _, err = m.AllocateNext("", "default/a")
		NewWithT(t).Expect(err).To(HaveOccurred())
		NewWithT(t).Expect(source.Close()).To(Succeed())
	})
}

// read returns the set in the store, nil if there is none.
func (c *connected) read() *kv.NetResourceSet {
	x, found, err := c.store.Get(context.Background(), kv.NetResourceSetKey("n1"))
	c.g.Expect(err).NotTo(HaveOccurred())
	if !found {
		return nil
	}
	m := &kv.NetResourceSet{}
	c.g.Expect(proto.Unmarshal(x.Value, m)).To(Succeed())
	return m
}

func eniSet(keys ...string) *kv.NetResourceSet {
	m := &kv.NetResourceSet{Name: "n1", Pool: map[string]*kv.NetResource{}, Interfaces: map[string]*kv.NetResourceInterface{
		"eni-2": {Mac: "02:00:00:00:00:02", Device: 1, VpcCidrs: []string{"10.0.0.0/8", "172.16.0.0/12"}, Ranges: []*kv.SubnetRange{
			{Cidr: "10.0.0.0/24", Gateway: "10.0.0.254"}, {Cidr: "fd00::/64", Gateway: "fd00::1"},
		}},
	}}
	for _, k := range keys {
		m.Pool[k] = &kv.NetResource{Resource: "eni-2", Subnet: "subnet-a"}
	}
	return m
}

func TestAProgramNeedsOnlyPublishedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := mode("vpc-eni")
		c := connect(t, conf, eniSet("10.0.0.7", "10.0.0.16/30", "fd00::7"))
		c.RestoreFinished()
		v4, v6, err := c.AllocateNext("", "default/a")
		c.g.Expect(err).NotTo(HaveOccurred())
		v4.IP, v6.IP = nil, nil
		c.g.Expect(*v4).To(Equal(ipam.AllocationResult{CIDRs: []string{"10.0.0.0/24", "10.0.0.0/8", "172.16.0.0/12"}, PrimaryMAC: "02:00:00:00:00:02", GatewayIP: "10.0.0.254", InterfaceNumber: "eni-2"}))
		c.g.Expect(*v6).To(Equal(ipam.AllocationResult{CIDRs: []string{"fd00::/64"}, PrimaryMAC: "02:00:00:00:00:02", GatewayIP: "fd00::1", InterfaceNumber: "eni-2"}))
		for range 4 { // all addresses of the block
			_, _, err = c.AllocateNext("ipv4", "default/b")
			c.g.Expect(err).NotTo(HaveOccurred())
		}
		c.g.Expect(c.GetVpcCIDRs()).To(HaveLen(2))
		c.g.Expect(conf.GetIPv4NativeRoutingCIDR().String()).To(Equal("10.0.0.0/8"))
		time.Sleep(2 * time.Second)
		used := c.read().Used
		c.g.Expect(used).To(HaveLen(6))
		c.g.Expect(proto.Equal(used["10.0.0.7"], &kv.NetResource{Owner: "default/a", Resource: "eni-2", Subnet: "subnet-a"})).To(BeTrue(), "%v", used)
		c.g.Expect(c.ReleaseIPString("default/a")).To(Succeed())
		time.Sleep(2 * time.Second)
		c.g.Expect(c.read().Used).To(HaveLen(4))
	})
}

func TestAnAddressWithoutInterfaceWaitsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := eniSet("10.0.0.7")
		interfaces := set.Interfaces
		set.Interfaces = nil
		c := connect(t, &config{mode: "vpc-eni", v4: true}, set)
		c.g.Expect(c.AllocateIPString("10.0.0.7", me)).To(MatchError(ContainSubstring("its subnet is not known")))
		set.Interfaces = interfaces
		c.write(set)
		c.g.Expect(c.AllocateIPString("10.0.0.7", me)).To(Succeed())
	})
}

func TestTheSourceAnswersTheOperator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connect(t, &config{mode: "crd", v4: true}, eniSet("10.0.0.7", "10.0.0.8"))
		set := c.read()
		set.Releases = map[string]string{"10.0.0.7": ipam.MarkedForRelease, "10.0.0.8": ipam.MarkedForRelease}
		c.write(set)
		c.g.Expect(c.AllocateIPString("10.0.0.7", me)).To(Succeed(), "a running pod has it")
		time.Sleep(time.Minute)
		c.g.Expect(c.read().Releases).To(HaveKeyWithValue("10.0.0.8", ipam.MarkedForRelease), "before RestoreFinished")
		c.RestoreFinished()
		time.Sleep(2 * time.Second)
		c.g.Expect(c.read().Releases).To(Equal(map[string]string{"10.0.0.7": ipam.DoNotRelease, "10.0.0.8": ipam.ReadyForRelease}))
		c.g.Expect(c.AllocateIPString("10.0.0.8", me)).To(MatchError(ipam.ErrGivenBack))
		set = c.read()
		set.Releases = map[string]string{"10.0.0.8": ipam.ReleasedIP}
		delete(set.Pool, "10.0.0.8")
		c.write(set)
		time.Sleep(2 * time.Second)
		c.g.Expect(c.read().Releases).To(BeEmpty())
	})
}

func TestAMissingSetIsCreatedWithTheAddressesInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connect(t, &config{mode: "crd", v4: true}, nil)
		c.RestoreFinished()
		time.Sleep(time.Minute)
		c.g.Expect(c.read()).To(BeNil(), "there is no Node")
		c.put(kv.NodeKey("n1"), &kv.Node{Name: "n1", ProviderId: "aws:///eu-west-1a/i-0abc"})
		c.source.UpdateNetResourceSetResource()
		made := c.read()
		c.g.Expect(made.InstanceId).To(Equal("i-0abc"))
		c.g.Expect(made.Marks.MinAllocate).To(BeEquivalentTo(3))
		made.Pool = eniSet("10.0.0.7", "10.0.0.8").Pool
		c.write(made)
		c.g.Expect(c.AllocateIPString("10.0.0.7", me)).To(Succeed())
		_, err := c.store.Txn(context.Background(), nil, []kvdb.Op{kvdb.Delete(kv.NetResourceSetKey("n1")), kvdb.Delete(kv.NodeKey("n1"))})
		c.g.Expect(err).NotTo(HaveOccurred())
		synctest.Wait()
		c.g.Expect(c.AllocateIPString("10.0.0.8", me)).NotTo(Succeed(), "it may be another node's soon")
		c.put(kv.NodeKey("n1"), &kv.Node{Name: "n1"})
		time.Sleep(time.Minute)
		c.g.Expect(c.read().Pool).To(HaveLen(1))
		c.g.Expect(c.read().Pool).To(HaveKey("10.0.0.7"))
	})
}

func TestTheSourceReportsTheCIDRsOfAClusterPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connect(t, &config{mode: "cluster-pool-v2beta", v4: true}, &kv.NetResourceSet{Name: "n1", PodCidrs: []string{"10.1.1.0/27"}})
		c.RestoreFinished()
		for range 25 {
			_, _, err := c.AllocateNext("", "default/a")
			c.g.Expect(err).NotTo(HaveOccurred())
		}
		c.g.Expect(c.cidrs.Load()).To(BeEquivalentTo(1), "its own report is not a change")
		time.Sleep(2 * time.Second)
		c.g.Expect(c.read().CidrStates).To(Equal(map[string]string{"10.1.1.0/27": ipam.Depleted}))
		set := c.read()
		set.PodCidrs = append(set.PodCidrs, "10.1.2.0/27")
		c.write(set)
		time.Sleep(2 * time.Second)
		c.g.Expect(c.read().CidrStates).To(Equal(map[string]string{"10.1.1.0/27": ipam.InUse, "10.1.2.0/27": ipam.InUse}))
		c.g.Expect(c.ReleaseIPString("default/a")).To(Succeed())
		time.Sleep(2 * time.Second)
		c.g.Expect(c.read().CidrStates).To(HaveKeyWithValue("10.1.2.0/27", ipam.Released))
	})
}

func TestALostSetOfAClusterPoolIsCreatedWithItsCIDRs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connect(t, &config{mode: "cluster-pool-v2beta", v4: true}, &kv.NetResourceSet{Name: "n1", PodCidrs: []string{"10.1.1.0/27", "10.1.2.0/27"}})
		c.RestoreFinished()
		c.g.Expect(c.AllocateIPString("10.1.2.7", me)).To(Succeed())
		c.put(kv.NodeKey("n1"), &kv.Node{Name: "n1"})
		_, err := c.store.Txn(context.Background(), nil, []kvdb.Op{kvdb.Delete(kv.NetResourceSetKey("n1"))})
		c.g.Expect(err).NotTo(HaveOccurred())
		time.Sleep(time.Minute)
		c.g.Expect(c.read().PodCidrs).To(Equal([]string{"10.1.2.0/27"}))
		c.g.Expect(c.read().Pool).To(BeEmpty())
	})
}

func TestTheCIDRsOfTheFirstInterfaceAreThePrimaryOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := eniSet("10.0.0.7")
		set.Pool["10.9.0.7"] = &kv.NetResource{Resource: "eni-9"}
		set.Interfaces["eni-9"] = &kv.NetResourceInterface{VpcCidrs: []string{"10.9.0.0/16", "10.0.0.0/8"}}
		conf := &config{mode: "crd", v4: true}
		c := connect(t, conf, set)
		c.g.Expect(c.GetVpcCIDRs()).To(HaveLen(3))
		c.g.Expect(conf.GetIPv4NativeRoutingCIDR().String()).To(Equal("10.9.0.0/16"))
	})
}

func TestAClosedSourceIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connect(t, &config{mode: "crd", v4: true}, eniSet("10.0.0.7"))
		c.RestoreFinished()
		c.g.Expect(c.source.Close()).To(Succeed())
		c.g.Expect(c.AllocateIPString("10.0.0.7", me)).To(Succeed(), "it needs no remote system")
		time.Sleep(time.Minute)
		c.g.Expect(c.read().Used).To(BeEmpty())
		c.source.UpdateNetResourceSetResource() // does not wait for ever
		c.source.RegisterNetResourceSetSubscriber(nil)
		for _, deps := range []ipam.SourceDeps{{Node: "n1"}, {Store: c.store}} {
			_, err := ipam.NewSource(context.Background(), deps)
			c.g.Expect(err).To(MatchError(ContainSubstring("is needed")))
		}
	})
}
