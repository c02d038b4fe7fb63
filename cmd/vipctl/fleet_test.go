package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// TestFleet runs the scripts in testdata/fleet. Each script has its own etcd, which vipd.toml
// names. It can use these commands in addition to exits and testscript's:
//
//	put KEY FILE   writes a key below the prefix, as another program would
//	del KEY        deletes a key below the prefix
//	full           fills etcd's database up to its quota
//	keys           prints the keys below the prefix that have no lease
func TestFleet(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/fleet", UpdateScripts: *update, RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(e *testscript.Env) error {
			cluster := etcdkit.Start(e.T().(testing.TB), etcdkit.Options{})
			e.Values["client"] = cluster.Client()
			e.Setenv("VIPCTL_CONFIG", filepath.Join(e.WorkDir, "vipd.toml"))
			e.Setenv("URL", cluster.Endpoints()[0])
			e.Setenv("SUDO_USER", "ana")
			e.Setenv("GORACE", "atexit_sleep_ms=0") // otherwise each command takes a second longer
			text := fmt.Sprintf("run_dir = %q # this machine may run a vipd of its own\n[store]\nkind = \"etcd\"\n[etcd]\nendpoints = [%q]\n",
				filepath.Join(e.WorkDir, "run"), cluster.Endpoints()[0])
			return os.WriteFile(filepath.Join(e.WorkDir, "vipd.toml"), []byte(text), 0o600)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "put": putKey, "del": delKey, "full": fillUp, "keys": keysBelow},
	})
}

const prefix = "/vipd"

// etcdOf returns a client for a script's etcd, and a context for requests.
func etcdOf(ts *testscript.TestScript) (*clientv3.Client, context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), wait.Patience)
	return ts.Value("client").(*clientv3.Client), ctx, cancel
}

func putKey(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: put KEY FILE")
	}
	client, ctx, cancel := etcdOf(ts)
	defer cancel()
	_, err := client.Put(ctx, prefix+"/"+args[0], strings.TrimSpace(ts.ReadFile(args[1])))
	ts.Check(err)
}

func delKey(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: del KEY")
	}
	client, ctx, cancel := etcdOf(ts)
	defer cancel()
	_, err := client.Delete(ctx, prefix+"/"+args[0])
	ts.Check(err)
}

func fillUp(ts *testscript.TestScript, _ bool, _ []string) {
	client, ctx, cancel := etcdOf(ts)
	defer cancel()
	_, err := etcdserverpb.NewMaintenanceClient(client.ActiveConnection()).Alarm(ctx, &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, Alarm: etcdserverpb.AlarmType_NOSPACE,
	})
	ts.Check(err)
}

func keysBelow(ts *testscript.TestScript, _ bool, _ []string) {
	client, ctx, cancel := etcdOf(ts)
	defer cancel()
	answer, err := client.Get(ctx, prefix+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	ts.Check(err)
	for _, kv := range answer.Kvs {
		if kv.Lease == 0 {
			_, _ = fmt.Fprintln(ts.Stdout(), strings.TrimPrefix(string(kv.Key), prefix+"/"))
		}
	}
}
