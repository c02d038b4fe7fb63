package apiserver_test

import (
	"context"
	"net/http/httptest"
	"testing"

	"vipd/cmd/internal/api"
	"vipd/cmd/vipd/daemon/internal/apiserver"
	"vipd/store/tomlfile"
)

// TestReloadIsSigned requests reloads like vipctl reload and vipctl confirm. The author must be
// passed to the source, and must be part of the cause for the history.
func TestReloadIsSigned(t *testing.T) {
	for query, want := range map[string]string{"by=ana": "vipctl reload by ana", "by=ana&confirm=true": "vipctl confirm by ana"} {
		var cause, author string
		h := apiserver.Handler(apiserver.Options{Reload: func(_ context.Context, by string, how tomlfile.Reload) (api.Reload, error) {
			cause, author = by, how.By
			return api.Reload{}, nil
		}})
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/v1/reload?"+query, nil))
		if cause != want || author != "ana" {
			t.Errorf("%s: cause = %q, want %q; author = %q, want ana", query, cause, want, author)
		}
	}
}
