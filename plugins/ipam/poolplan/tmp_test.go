package poolplan_test
import ("testing";"math/rand/v2")
func TestTmp(t *testing.T) {
	for _, calm := range []int{20,3} {
	bad := 0
	for seed := range uint64(2500) {
		w := newWorld(rand.New(rand.NewPCG(seed, 99)).IntN)
		w.calm = calm
		if err := w.wander(300); err != nil { bad++; if bad < 4 {t.Errorf("calm %d seed %d: %v", calm, seed, err)} }
	}
	t.Log(calm, bad)
	}
}
