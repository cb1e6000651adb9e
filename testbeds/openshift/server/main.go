// What makes a project an OpenShift project: OpenShift's API server, and those of its controllers that projects need.
//
// A release of OpenShift has them in two programs, on many machines. Here they are one, beside the API server of a
// Kubernetes cluster.
package main

import (
	"encoding/json"
	"net/http"
	"os"
	"time"

	apiserver "github.com/openshift/openshift-apiserver/pkg/cmd/openshift-apiserver"
	projects "github.com/openshift/openshift-controller-manager/pkg/project/controller"
	accounts "github.com/openshift/openshift-controller-manager/pkg/serviceaccounts/controllers"
	"github.com/spf13/cobra"
	authorization "k8s.io/api/authorization/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/cli"
	"k8s.io/klog/v2"
)

// Where the API server of Kubernetes asks.
const gate = "127.0.0.1:8444"

func main() {
	stop := server.SetupSignalHandler()
	command := apiserver.NewOpenShiftAPIServerCommand("openshift", os.Stdout, os.Stderr, stop)
	command.PreRunE = func(command *cobra.Command, _ []string) error {
		config, err := clientcmd.BuildConfigFromFlags("", command.Flag("authentication-kubeconfig").Value.String())
		if err != nil {
			return err
		}
		config.QPS, config.Burst = 200, 400
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		go openGate(client)
		startControllers(client, stop)
		return nil
	}
	os.Exit(cli.Run(command))
}

// openGate says who may do something with a project: whoever may do it in the namespace of that name. The API server of
// Kubernetes takes a right to all projects for necessary and asks here if somebody has none; that of OpenShift is changed.
func openGate(client kubernetes.Interface) {
	klog.Fatal(http.ListenAndServe(gate, http.HandlerFunc(func(answer http.ResponseWriter, question *http.Request) {
		var review authorization.SubjectAccessReview
		if err := json.NewDecoder(question.Body).Decode(&review); err != nil || review.Spec.ResourceAttributes == nil {
			http.Error(answer, "this is no review", http.StatusBadRequest)
			return
		}
		review.Spec.ResourceAttributes.Namespace = review.Spec.ResourceAttributes.Name
		judged, err := client.AuthorizationV1().SubjectAccessReviews().Create(question.Context(), &review, meta.CreateOptions{})
		if err != nil {
			http.Error(answer, err.Error(), http.StatusInternalServerError)
			return
		}
		judged.SetGroupVersionKind(authorization.SchemeGroupVersion.WithKind("SubjectAccessReview"))
		answer.Header().Set("Content-Type", "application/json")
		json.NewEncoder(answer).Encode(judged)
	})))
}

// startControllers lets projects go when they are deleted, and gives accounts what they pull images with.
func startControllers(client kubernetes.Interface, stop <-chan struct{}) {
	shared := informers.NewSharedInformerFactory(client, 10*time.Minute)
	core := shared.Core().V1()

	finalizer := projects.NewProjectFinalizerController(core.Namespaces(), client)
	addressesKnown := make(chan struct{})
	pullSecrets := accounts.NewDockercfgController(core.ServiceAccounts(), core.Secrets(), client,
		accounts.DockercfgControllerOptions{DockerURLsInitialized: addressesKnown})
	registry := accounts.NewDockerRegistryServiceController(core.Secrets(), core.Services(), client,
		accounts.DockerRegistryServiceControllerOptions{
			DockercfgController:   pullSecrets,
			DockerURLsInitialized: addressesKnown,
			ClusterDNSSuffix:      "cluster.local",
		})

	shared.Start(stop)
	go finalizer.Run(stop, 5)
	go pullSecrets.Run(5, stop)
	go registry.Run(1, stop)
}
