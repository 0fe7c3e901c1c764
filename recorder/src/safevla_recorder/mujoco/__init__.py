"""Recording of one episode in plain MuJoCo; the code that steps the model must call the recorder."""
