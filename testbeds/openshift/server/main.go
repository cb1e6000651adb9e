// What makes a project an OpenShift project: OpenShift's API server, and those of its controllers that projects need.
//
// A release of OpenShift has them in two programs, on many machines. Here they are one, beside the API server of a
// Kubernetes cluster that knows nothing of them.
package main

import (
	"os"
	"time"

	apiserver "github.com/openshift/openshift-apiserver/pkg/cmd/openshift-apiserver"
	projects "github.com/openshift/openshift-controller-manager/pkg/project/controller"
	accounts "github.com/openshift/openshift-controller-manager/pkg/serviceaccounts/controllers"
	"github.com/spf13/cobra"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/cli"
)

func main() {
	stop := server.SetupSignalHandler()
	command := apiserver.NewOpenShiftAPIServerCommand("openshift", os.Stdout, os.Stderr, stop)
	command.PreRunE = func(command *cobra.Command, _ []string) error {
		return startControllers(command.Flag("authentication-kubeconfig").Value.String(), stop)
	}
	os.Exit(cli.Run(command))
}

// startControllers lets projects go when they are deleted, and gives accounts what they pull images with.
func startControllers(kubeconfig string, stop <-chan struct{}) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 200, 400
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
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
	return nil
}
